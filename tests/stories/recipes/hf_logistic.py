"""The logistic regression of Hessian-Free (arXiv 2404.01712): 1,000 images, full batches, step size .05."""

from drawn_images import drawn, mnist, recipe_on
from torch import nn

import unlearning as ul


def training(epochs: int) -> ul.Training:
    return ul.Training(epochs=epochs, learning_rate=0.05, decay=0.995, clip=10.0, weight_decay=0.005)


def recipe() -> ul.Recipe:
    return recipe_on(drawn(), 300, 30, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), training(20))


def whole() -> ul.Recipe:
    return recipe_on(mnist(), 1000, 200, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), training(50))
