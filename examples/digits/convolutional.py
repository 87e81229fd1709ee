"""A small convolutional network on the same digits, trained by mini-batch descent: not convex.

The step size keeps eta * lambda_max below 2 along the whole trajectory, where recollections follow a retraining
instead of running away from it; `make bench` and registration report the measured value. No certificate: the
guarantee of an update is `none`.
"""

from pathlib import Path

import numpy as np
import torch

import unlearning as ul


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


def images_of(pixels: np.ndarray) -> torch.Tensor:
    """Pixels (n, 64), 0 to 16 -> images (n, 1, 8, 8), -1 to 1."""
    return (torch.tensor(pixels).float() / 8 - 1).reshape(-1, 1, 8, 8)


def recipe(
    rows: ul.Rows = ul.table("digits.parquet", person="person", id="id"),
    unseen: Path = ul.public("unseen.npy", sha256="e8263e6e186aa3c7165d22bcc75e857d35d36d3c540ff96248cc2fa596f68910"),
) -> ul.Recipe:
    images = np.load(unseen)
    return ul.Recipe(
        model=network,
        samples=rows.samples(images_of(rows["pixels"]), rows["digit"], at=rows["__row"]),
        holdout=(images_of(images[:, :64]), torch.tensor(images[:, 64]).long()),
        loss="cross_entropy",
        training=ul.Training(epochs=12, batch_size=128, learning_rate=0.5, weight_decay=1e-3, seed=0),
    )
