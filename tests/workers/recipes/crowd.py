"""Softmax regression of many people with one sample each."""

import torch

import unlearning as ul
from tests.workers import meanwhile

PEOPLE = 5_200


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people(PEOPLE, 1)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:100], targets[:100]),
        loss="cross_entropy",
        training=ul.Training(epochs=2, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
