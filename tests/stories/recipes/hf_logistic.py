"""The logistic regression of Hessian-Free (arXiv 2404.01712): 1,000 images, full batches, step size .05."""

from drawn_images import dealt, drawn, mnist
from torch import Tensor, nn

import unlearning as ul


def of(images: Tensor, targets: Tensor, trained: int, people: int, epochs: int) -> ul.Recipe:
    """Return a recipe that trains on the first ``trained`` images and is judged by the last 400."""
    pixels = images[0].numel()
    return ul.Recipe(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(pixels, 10)),
        samples=dealt(images[:trained], targets[:trained], people),
        holdout=(images[-400:], targets[-400:]),
        loss="cross_entropy",
        training=ul.Training(epochs=epochs, learning_rate=0.05, decay=0.995, clip=10.0, weight_decay=0.005),
    )


def recipe() -> ul.Recipe:
    return of(*drawn(), trained=300, people=30, epochs=20)


def whole() -> ul.Recipe:
    return of(*mnist(), trained=1000, people=200, epochs=50)
