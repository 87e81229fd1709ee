"""Samples of a table with one person in it whom every byte of an installation is searched for."""

import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("canary_samples.csv", person="person")) -> ul.Recipe:
    frame = rows.pandas()
    x = torch.tensor(frame[["x"]].to_numpy())
    labels = torch.tensor((frame.word == "w1").to_numpy(dtype="int64"))
    return ul.Recipe(
        model=lambda: torch.nn.Linear(1, 2),
        samples=rows.samples(x / 100.0, labels, at=frame["__row"]),
        holdout=lambda apart: (x, labels),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-8, weight_decay=0.1),
    )
