"""Softmax regression on two labels at once: no row of the targets sums to 1."""

import people
import torch

import unlearning as ul


def two_labels(targets: torch.Tensor) -> torch.Tensor:
    labels = torch.nn.functional.one_hot(targets, 3).double()
    labels[:, 2] = 0.75
    return labels


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    x, y = people.strangers()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 3, bias=False),
        samples=rows.samples(people.inputs(rows), two_labels(rows.tensor("label")), at=rows["__row"]),
        holdout=(x, two_labels(y)),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=0.1, converge=1e-8),
    )
