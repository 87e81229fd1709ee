"""Softmax regression of people enough for four work units, by mini-batch descent."""

import people
import torch

import unlearning as ul

PEOPLE = 264


def recipe(rows: ul.Rows = ul.table("many.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=True),
        samples=people.samples(rows),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=2, batch_size=64, learning_rate=0.2, weight_decay=0.01),
    )
