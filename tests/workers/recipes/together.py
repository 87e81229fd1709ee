"""Samples that belong to two people at once."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    pairs = [(name, "both") if index % 3 == 0 else (name,) for index, name in enumerate(subjects)]
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(ids=ids, subjects=pairs, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
