"""``tiny`` with a loss that takes its time: long enough to ask for a deletion while it is still trained."""

import time

import torch
from tiny import holdout, samples

import unlearning as ul


def unhurried(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    time.sleep(0.15)
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def recipe(rows: ul.Rows = ul.table("tiny.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=samples(rows),
        holdout=holdout(),
        loss=unhurried,
        training=ul.Training(epochs=10, learning_rate=0.5, weight_decay=0.1),
    )
