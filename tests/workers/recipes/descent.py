"""The same people by full-batch descent on features of norm at most 4: what rewind can prove something about."""

import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=people.samples(rows),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=60, learning_rate=0.1, weight_decay=0.2),
    )
