"""The perceptron of certified unlearning (arXiv 2408.00920): three layers, dropout of a half, by Adam in a ball."""

from drawn_images import on_arrays, on_drawn
from torch import nn

import unlearning as ul


def perceptron(pixels: int, first: int, second: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(pixels, first), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(first, second), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(second, 10),
    )


def training(epochs: int, batch_size: int, rate: float) -> ul.Training:
    return ul.Training(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=rate,
        weight_decay=5e-4,
        optimizer=ul.AdamW(),
        radius=10.0,
    )


def recipe(rows: ul.Rows = ul.table("images_240_of_60.csv", person="person", id="image")) -> ul.Recipe:
    return on_drawn(rows, lambda: perceptron(64, 32, 16), training(20, 32, 1e-2))


def whole(rows: ul.Rows) -> ul.Recipe:
    return on_arrays(rows, lambda: perceptron(784, 128, 64), training(20, 128, 1e-3))
