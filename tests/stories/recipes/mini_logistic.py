"""The regularised logistic regression of Mini-Unlearning (arXiv 2406.16986): SGD at .01, an L2 norm of .005."""

from drawn_images import drawn, mnist, recipe_on
from torch import nn

import unlearning as ul


def training(epochs: int) -> ul.Training:
    return ul.Training(epochs=epochs, batch_size=64, learning_rate=0.01, weight_decay=0.005)


def recipe() -> ul.Recipe:
    return recipe_on(drawn(), 256, 32, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), training(20))


def whole() -> ul.Recipe:
    return recipe_on(mnist(), 8000, 400, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), training(20))
