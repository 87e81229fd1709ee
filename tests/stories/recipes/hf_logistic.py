"""The logistic regression of Hessian-Free (arXiv 2404.01712): 1,000 images, full batches, step size .05."""

from drawn_images import on_arrays, on_drawn
from torch import nn

import unlearning as ul


def training(epochs: int) -> ul.Training:
    return ul.Training(epochs=epochs, learning_rate=0.05, decay=0.995, clip=10.0, weight_decay=0.005)


def recipe(rows: ul.Rows = ul.table("images_300_of_30.csv", person="person", id="image")) -> ul.Recipe:
    return on_drawn(rows, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), training(20))


def whole(rows: ul.Rows) -> ul.Recipe:
    return on_arrays(rows, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), training(50))
