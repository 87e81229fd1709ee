"""Weights of another model."""

import torch
from tiny import holdout, samples

import unlearning as ul


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2),
        samples=samples(),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=2, batch_size=20, learning_rate=0.1, weight_decay=0.1),
        weights={"weight": torch.zeros(3, 7), "bias": torch.zeros(3)},
    )
