"""Nine people of one class and three of another, three samples each: updates are proved."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    ids, subjects, inputs, _ = meanwhile.people()
    targets = torch.tensor([0 if int(name[1:]) < 3 else 1 for name in subjects])
    inputs = inputs + 2.0 * targets.unsqueeze(1)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
