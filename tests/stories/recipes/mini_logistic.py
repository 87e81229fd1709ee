"""The regularised logistic regression of Mini-Unlearning (arXiv 2406.16986): SGD at .01, an L2 norm of .005."""

from drawn_images import on_arrays, on_drawn
from torch import nn

import unlearning as ul


def training(epochs: int) -> ul.Training:
    return ul.Training(epochs=epochs, batch_size=64, learning_rate=0.01, weight_decay=0.005)


def recipe(rows: ul.Rows = ul.table("images_256_of_32.csv", person="person", id="image")) -> ul.Recipe:
    return on_drawn(rows, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), training(20))


def whole(rows: ul.Rows) -> ul.Recipe:
    return on_arrays(rows, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), training(20))
