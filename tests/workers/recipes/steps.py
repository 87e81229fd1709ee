"""The same people by mini-batch descent: recollections follow the trajectory, and nothing is proved."""

import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=True),
        samples=people.samples(rows),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=5, batch_size=12, learning_rate=0.2, weight_decay=0.01),
    )
