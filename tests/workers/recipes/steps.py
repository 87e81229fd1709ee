"""The same people by mini-batch descent: recollections follow the trajectory, and nothing is proved."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, subjects, inputs, targets = meanwhile.people()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=True),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=5, batch_size=12, learning_rate=0.2, weight_decay=0.01),
    )
