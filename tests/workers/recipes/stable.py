"""A small convolutional network on 200 digits at a learning rate where recollections follow a retraining."""

import torch
from sklearn.datasets import load_digits

import unlearning as ul
from examples.digits.convolutional import network

TRAIN, PEOPLE = 200, 10


def recipe(learning_rate: float = 0.5) -> ul.Recipe:
    digits = load_digits()
    inputs = torch.tensor(digits.images[:300] / 8 - 1, dtype=torch.float32).unsqueeze(1)
    targets = torch.tensor(digits.target[:300])
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
        training=ul.Training(epochs=20, batch_size=50, learning_rate=learning_rate, weight_decay=1e-3),
    )
