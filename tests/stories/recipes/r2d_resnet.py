"""A ResNet-18 as in Rewind-to-Delete (arXiv 2409.09778), with the batch normalisation that the paper leaves out."""

from drawn_images import on_arrays, on_drawn
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


def recipe(rows: ul.Rows = ul.table("images_96_of_16.csv", person="person", id="image")) -> ul.Recipe:
    return on_drawn(rows, lambda: resnet(2), training(3, 48))


def whole(rows: ul.Rows) -> ul.Recipe:
    return on_arrays(rows, lambda: resnet(8), training(3, 256))
