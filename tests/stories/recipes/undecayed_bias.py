"""A convex loss, but the bias is not decayed: nothing can be proved about it."""

import torch
from tiny import holdout, samples

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("tiny.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2),
        samples=samples(rows),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=10, learning_rate=0.5, weight_decay=0.1, converge=1e-8, undecayed=("bias",)),
    )
