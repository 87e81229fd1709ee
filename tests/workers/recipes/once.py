"""A recipe that gives fewer samples when it is run again: updates could not read them."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    meanwhile.DROPPED.update({"s0", "s1", "s2"})
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
