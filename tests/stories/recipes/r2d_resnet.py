"""A ResNet-18 as in Rewind-to-Delete (arXiv 2409.09778), with the batch normalisation that the paper leaves out."""

from drawn_images import drawn, mnist, recipe_on
from resnet import resnet

import unlearning as ul


def training(epochs: int, batch_size: int) -> ul.Training:
    return ul.Training(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=0.003,
        weight_decay=1e-4,
        optimizer=ul.AdamW(),
        schedule=ul.Schedule("exponential", factor=0.99),
    )


def recipe() -> ul.Recipe:
    return recipe_on(drawn(), 96, 16, lambda: resnet(2), training(3, 48))


def whole() -> ul.Recipe:
    return recipe_on(mnist(), 8000, 100, lambda: resnet(8), training(3, 256))
