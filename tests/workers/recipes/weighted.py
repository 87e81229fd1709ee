"""Logistic regression with a weight for each row, which newton proves."""

import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("weighted.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2),
        samples=rows.samples(people.inputs(rows), rows["label"], at=rows["__row"], weight=rows["weight"]),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-8, weight_decay=0.01),
    )
