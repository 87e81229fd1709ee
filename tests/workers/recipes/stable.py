"""A small convolutional network on 200 digits at a learning rate where recollections follow a retraining."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor

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


def pixels(rows: ul.Rows) -> Tensor:
    """The image of each row, (n, 1, 8, 8), between -1 and 1."""
    return rows.tensor(*(f"pixel{number}" for number in range(64))).float().reshape(-1, 1, 8, 8) / 8 - 1


def strangers() -> tuple[Tensor, Tensor]:
    """A hundred digits that the table does not have."""
    digits = load_digits()
    images = torch.tensor(digits.images[200:300] / 8 - 1, dtype=torch.float32)
    return images.unsqueeze(1), torch.tensor(digits.target[200:300])


def recipe(rows: ul.Rows = ul.table("digits.csv", person="person", id="id"), learning_rate: float = 0.5) -> ul.Recipe:
    return ul.Recipe(
        model=network,
        samples=rows.samples(pixels(rows), rows["digit"], at=rows["__row"]),
        holdout=strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=20, batch_size=50, learning_rate=learning_rate, weight_decay=1e-3),
    )
