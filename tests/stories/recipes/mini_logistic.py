"""The regularised logistic regression of Mini-Unlearning (arXiv 2406.16986): SGD at .01, an L2 norm of .005."""

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
        training=ul.Training(epochs=epochs, batch_size=64, learning_rate=0.01, weight_decay=0.005),
    )


def recipe() -> ul.Recipe:
    return of(*drawn(), trained=256, people=32, epochs=20)


def whole() -> ul.Recipe:
    return of(*mnist(), trained=8000, people=400, epochs=20)
