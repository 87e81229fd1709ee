"""Softmax regression whose bias is not decayed: not strongly convex, so nothing is proved about it."""

import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=True),
        samples=people.samples(rows),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1, undecayed=("bias",)),
    )
