"""The simple CNN of Hessian-Free (arXiv 2404.01712): batches of 64, a step size that falls by .995, clipping at 10."""

from drawn_images import dealt, drawn, mnist
from torch import Tensor, nn

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


def of(images: Tensor, targets: Tensor, trained: int, people: int, training: ul.Training) -> ul.Recipe:
    """Return a recipe that trains on the first ``trained`` images and is judged by the last 400."""
    return ul.Recipe(
        model=paper_network if images.shape[-1] == 28 else small_network,
        samples=dealt(images[:trained], targets[:trained], people),
        holdout=(images[-400:], targets[-400:]),
        loss="cross_entropy",
        training=training,
    )


def training(epochs: int, rate: float) -> ul.Training:
    return ul.Training(epochs=epochs, batch_size=64, learning_rate=rate, decay=0.995, clip=10.0, weight_decay=1e-6)


def recipe() -> ul.Recipe:
    return of(*drawn(), trained=128, people=32, training=training(4, 0.05))


def whole() -> ul.Recipe:
    return of(*mnist(), trained=1000, people=50, training=training(20, 0.05))
