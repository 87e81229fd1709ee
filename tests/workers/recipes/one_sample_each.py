"""A convolution, and people for two work units, with a sample each: many a batch of four holds none of a unit."""

import people
import torch

import unlearning as ul

PEOPLE = 130


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4)),
        torch.nn.Conv1d(1, 2, 2),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 2),
    )


def recipe(rows: ul.Rows = ul.table("many.csv", person="person", id="id")) -> ul.Recipe:
    some = rows["__row"] < PEOPLE
    return ul.Recipe(
        model=network,
        samples=rows.samples(people.inputs(rows)[some], rows["label"][some], at=rows["__row"][some]),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=1, batch_size=4, learning_rate=0.2, weight_decay=0.01),
    )
