"""A small network with ReLU on 120 digits: first order misses units that cross zero."""

import torch
from sklearn.datasets import load_digits

import unlearning as ul

TRAIN, PEOPLE = 120, 24


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 24), torch.nn.ReLU(), torch.nn.Linear(24, 10))


def recipe(learning_rate: float = 0.5, epochs: int = 20) -> ul.Recipe:
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data[:320] / 8 - 1).float(), torch.tensor(digits.target[:320])
    return ul.Recipe(
        model=network,
        samples=ul.Samples(
            ids=[f"digit-{index}" for index in range(TRAIN)],
            subjects=[f"person-{index % PEOPLE}" for index in range(TRAIN)],
            inputs=inputs[:TRAIN],
            targets=targets[:TRAIN],
        ),
        holdout=(inputs[TRAIN:], targets[TRAIN:]),
        loss="cross_entropy",
        training=ul.Training(epochs=epochs, batch_size=40, learning_rate=learning_rate, weight_decay=1e-3),
    )
