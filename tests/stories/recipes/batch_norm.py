"""A model in which every sample changes the others: BatchNorm in training mode."""

import torch
from tiny import holdout, samples

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("tiny.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)),
        samples=samples(rows),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=2, batch_size=20, learning_rate=0.1, weight_decay=0.1),
    )
