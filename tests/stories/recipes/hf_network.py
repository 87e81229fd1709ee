"""The simple CNN of Hessian-Free (arXiv 2404.01712): batches of 64, a step size that falls by .995, clipping at 10."""

from drawn_images import on_arrays, on_drawn
from torch import nn

import unlearning as ul


def paper_network() -> nn.Module:
    """Return the 21,840 weights for images of 28 by 28; the published script leaves its dropout off."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def small_network() -> nn.Module:
    """Return the same layers for images of 8 by 8."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 12),
        nn.ReLU(),
        nn.Linear(12, 10),
    )


def training(epochs: int) -> ul.Training:
    return ul.Training(epochs=epochs, batch_size=64, learning_rate=0.05, decay=0.995, clip=10.0, weight_decay=1e-6)


def recipe(rows: ul.Rows = ul.table("images_128_of_32.csv", person="person", id="image")) -> ul.Recipe:
    return on_drawn(rows, small_network, training(4))


def whole(rows: ul.Rows) -> ul.Recipe:
    return on_arrays(rows, paper_network, training(20))
