"""A small convolutional network on the same digits, trained by mini-batch descent: not convex.

The step size keeps eta * lambda_max below 2 along the whole trajectory, where recollections follow a retraining
instead of running away from it; `make bench` and registration report the measured value. No certificate: the
guarantee of an update is `none`.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import unlearning as ul

TRAIN, PEOPLE, SEED = 1437, 100, 0


def network() -> torch.nn.Module:
    """1,210 weights; tanh, because recollections need second derivatives."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3, stride=2, padding=1),
        torch.nn.Tanh(),
        torch.nn.Conv2d(6, 12, 3, stride=2, padding=1),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 10),
    )


def recipe() -> ul.Recipe:
    digits = load_digits()
    random = np.random.default_rng(SEED)
    order = random.permutation(len(digits.target))
    inputs = torch.tensor(digits.images[order] / 8 - 1, dtype=torch.float32).unsqueeze(1)
    targets = torch.tensor(digits.target[order])
    return ul.Recipe(
        model=network,
        samples=ul.Samples(
            ids=[f"digit-{index:04d}" for index in order[:TRAIN]],
            subjects=[f"person-{person:03d}" for person in random.integers(PEOPLE, size=TRAIN)],
            inputs=inputs[:TRAIN],
            targets=targets[:TRAIN],
        ),
        holdout=(inputs[TRAIN:], targets[TRAIN:]),
        loss="cross_entropy",
        training=ul.Training(epochs=12, batch_size=128, learning_rate=0.5, weight_decay=1e-3, seed=SEED),
    )
