"""A network with a hidden layer, by mini-batch descent: no linear head."""

import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("few.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)),
        samples=people.samples(rows),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=20, batch_size=8, learning_rate=0.2, weight_decay=0.01),
    )
