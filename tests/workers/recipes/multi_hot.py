"""Softmax regression on two labels at once: no row of the targets sums to 1."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    labels = torch.nn.functional.one_hot(targets, 3).double()
    labels[:, 2] = 0.75
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 3, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=labels),
        holdout=(inputs[:10], labels[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=0.1, converge=1e-8),
    )
