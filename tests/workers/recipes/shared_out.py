"""Softmax regression of people enough for four work units, by mini-batch descent."""

import torch

import unlearning as ul
from tests.workers import meanwhile

PEOPLE = 264


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, subjects, inputs, targets = meanwhile.people(PEOPLE, 1)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=True),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=2, batch_size=64, learning_rate=0.2, weight_decay=0.01),
    )
