"""A convolution, and people for two work units, with a sample each: many a batch of four holds none of a unit."""

import torch

import unlearning as ul
from tests.workers import meanwhile

PEOPLE = 130


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4)),
        torch.nn.Conv1d(1, 2, 2),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 2),
    )


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people(PEOPLE, 1)
    return ul.Recipe(
        model=network,
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=1, batch_size=4, learning_rate=0.2, weight_decay=0.01),
    )
