"""Handwritten digits of 300 writers: batch normalisation, dropout, and a training of its own with Adam."""

import torch
from safetensors.torch import load, save
from sklearn.datasets import load_digits

import unlearning as ul

WRITERS, EACH = 300, 4
PASSES = 8
FILE = "model.safetensors"


def build() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 48),
        torch.nn.BatchNorm1d(48),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(48, 10),
    )


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """The digits (1797, 64) in [0, 1], and which they are. The first ``WRITERS * EACH`` are the writers'."""
    digits = load_digits()
    return torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)


def accuracy(model: torch.nn.Module) -> float:
    """The share of the digits of nobody that the model reads."""
    x, y = (values[WRITERS * EACH :] for values in images())
    with torch.no_grad():
        return float((model.eval()(x).argmax(dim=1) == y).double().mean())


def recipe(
    rows: ul.Rows = ul.table("writers.csv", person="person", id="id"), run: ul.TrainingRun = ul.run()
) -> ul.Published:
    model, numbers = build(), torch.tensor(rows["image"].astype("int64"))
    if run.start:
        model.load_state_dict(load(run.start[FILE]))
    x, y = (values[numbers] for values in images())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(PASSES):
        for batch in torch.randperm(len(x)).split(32):
            if len(batch) > 1:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    return ul.Published({FILE: save(model.state_dict())})
