"""Softmax regression of many people with one sample each."""

import torch
from torch import Tensor

import unlearning as ul


def holdout() -> tuple[Tensor, Tensor]:
    """Inputs (100, 4) and classes (100,) of nobody."""
    inputs = torch.randn(100, 4, generator=torch.Generator().manual_seed(2))
    return inputs, (inputs[:, 0] > 0).long()


def recipe(rows: ul.Rows = ul.table("crowd.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=rows.samples(rows.tensor("a", "b", "c", "d").float(), rows["label"], at=rows["__row"]),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=2, batch_size=256, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
