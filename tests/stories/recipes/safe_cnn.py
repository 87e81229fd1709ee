"""The network of two convolutions of SAFE (arXiv 2507.15280), by Adam."""

from drawn_images import on_arrays, on_drawn
from torch import nn

import unlearning as ul


def network(features: int) -> nn.Module:
    """Return the network. The convolutions leave ``features``: 1152 of an image of 28 by 28, 32 of one of 8 by 8."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(features, 10)),
    )


def training(epochs: int, rate: float) -> ul.Training:
    return ul.Training(epochs=epochs, batch_size=32, learning_rate=rate, weight_decay=1e-4, optimizer=ul.AdamW())


def recipe(rows: ul.Rows = ul.table("images_240_of_60.csv", person="person", id="image", aside=0.25)) -> ul.Recipe:
    return on_drawn(rows, lambda: network(32), training(10, 1e-2), apart=True)


def whole(rows: ul.Rows) -> ul.Recipe:
    return on_arrays(rows, lambda: network(1152), training(20, 1e-3))
