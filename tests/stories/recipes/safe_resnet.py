"""A ResNet-18 as in SAFE (arXiv 2507.15280), with batch normalisation, by momentum."""

from drawn_images import drawn, mnist, recipe_on
from resnet import resnet

import unlearning as ul


def training(epochs: int, batch_size: int, rate: float) -> ul.Training:
    return ul.Training(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=rate,
        weight_decay=5e-4,
        optimizer=ul.SGD(0.9),
        schedule=ul.Schedule("cosine"),
    )


def recipe() -> ul.Recipe:
    return recipe_on(drawn(), 240, 60, lambda: resnet(2), training(6, 32, 0.1))


def whole() -> ul.Recipe:
    return recipe_on(mnist(), 8000, 100, lambda: resnet(8), training(3, 128, 0.05))
