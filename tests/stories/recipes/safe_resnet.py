"""A ResNet-18 as in SAFE (arXiv 2507.15280), with batch normalisation, by momentum."""

from drawn_images import on_arrays, on_drawn
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


def recipe(rows: ul.Rows = ul.table("images_240_of_60.csv", person="person", id="image", aside=0.25)) -> ul.Recipe:
    return on_drawn(rows, lambda: resnet(2), training(12, 32, 0.1), apart=True)


def whole(rows: ul.Rows) -> ul.Recipe:
    return on_arrays(rows, lambda: resnet(8), training(3, 128, 0.05))
