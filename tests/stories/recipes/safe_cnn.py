"""The network of two convolutions of SAFE (arXiv 2507.15280), by Adam."""

from drawn_images import drawn, mnist, recipe_on
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


def recipe() -> ul.Recipe:
    return recipe_on(drawn(), 240, 60, lambda: network(32), training(10, 1e-2))


def whole() -> ul.Recipe:
    return recipe_on(mnist(), 8000, 100, lambda: network(1152), training(20, 1e-3))
