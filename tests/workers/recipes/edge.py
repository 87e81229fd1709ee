"""A small network on digits, trained at the edge of stability: the norm ratio looks harmless there."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import unlearning as ul


def recipe() -> ul.Recipe:
    data = load_digits()
    inputs, targets = torch.tensor(data.data[:120] / 16.0), torch.tensor(data.target[:120])
    names = [f"p{index}" for index in range(120)]
    return ul.Recipe(
        model=lambda: nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)),
        samples=ul.Samples(ids=names, subjects=names, inputs=inputs, targets=targets),
        holdout=(inputs[:20], targets[:20]),
        loss="cross_entropy",
        training=ul.Training(epochs=40, learning_rate=1.0),
    )
