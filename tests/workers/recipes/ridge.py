"""Ridge regression whose training stops short of the minimiser: its Hessian is constant, so newton's bound is small."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, subjects, inputs, targets = meanwhile.people()
    numbers = targets.float().unsqueeze(1)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 1, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=numbers),
        holdout=(inputs[:10], numbers[:10]),
        loss="squared_error",
        training=ul.Training(epochs=400, learning_rate=0.3, weight_decay=0.1),
    )
