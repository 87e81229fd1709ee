"""A small network with ReLU on 200 digits: first order misses units that cross zero."""

import torch
from stable import pixels, strangers

import unlearning as ul


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 24), torch.nn.ReLU(), torch.nn.Linear(24, 10))


def recipe(rows: ul.Rows = ul.table("digits.csv", person="reader", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=network,
        samples=rows.samples(pixels(rows), rows["digit"], at=rows["__row"]),
        holdout=strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=20, batch_size=40, learning_rate=0.5, weight_decay=1e-3),
    )
