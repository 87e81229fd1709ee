"""Softmax regression whose bias is not decayed: not strongly convex, so nothing is proved about it."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=True),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1, undecayed=("bias",)),
    )
