"""Four small recipes on which the estimates of ``expunge check --measure`` are compared with what then happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

import unlearning as ul
from unlearning.features import RandomFourier


def split(x: Tensor, y: Tensor, people: int, **rest: object) -> ul.Recipe:
    """Three quarters of the rows to train on, dealt out to ``people``; the others are held out."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y, count = x[order], y[order], 3 * len(x) // 4
    subjects = [f"person-{row % people}" for row in range(count)]
    samples = ul.Samples([f"row-{row}" for row in range(count)], subjects, x[:count], y[:count])
    return ul.Recipe(samples=samples, holdout=(x[count:], y[count:]), **rest)  # type: ignore[arg-type]


def enlarged(recipe: ul.Recipe, times: int) -> ul.Recipe:
    """Return the recipe with so many times its people, each with the samples of one of them."""
    x, y = recipe.samples.tensors()
    ids = [f"{name}-{copy}" for copy in range(times) for name in recipe.samples.names]
    subjects = [[f"{name}-{copy}" for name in people] for copy in range(times) for people in recipe.samples.people]
    return replace(
        recipe,
        samples=ul.Samples(ids, subjects, x.repeat(times, *[1] * (x.dim() - 1)), y.repeat(times, *[1] * (y.dim() - 1))),
    )


def with_constant(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], dim=1)


def head(width: int, classes: int, decay: float) -> dict[str, object]:
    return {
        "model": lambda: nn.Linear(width, classes, bias=False),
        "training": ul.Training(epochs=20, learning_rate=0.5, weight_decay=decay, converge=1e-10),
    }


def logistic() -> ul.Recipe:
    table = load_breast_cancer()
    x = with_constant(torch.log1p(torch.tensor(table.data)).float() / 4)
    return split(x, torch.tensor(table.target).float(), 70, loss="binary_logistic", **head(x.shape[1], 1, 1e-2))


def ridge() -> ul.Recipe:
    table = load_diabetes()
    x = with_constant(torch.tensor(table.data).float() * 10)
    y = torch.tensor(table.target).float().unsqueeze(1) / 100
    return split(x, y, 60, loss="squared_error", **head(x.shape[1], 1, 1e-2))


def fourier() -> ul.Recipe:
    digits = load_digits()
    x = with_constant(RandomFourier(64, 200, 2.0)(torch.tensor(digits.data / 16)).float())
    return split(x, torch.tensor(digits.target), 80, loss="cross_entropy", **head(x.shape[1], 10, 1e-3))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 6, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 12, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(48, 10),
    )


def convolutional() -> ul.Recipe:
    digits = load_digits()
    x, y = torch.tensor(digits.data[:800] / 16).float(), torch.tensor(digits.target[:800])
    training = ul.Training(epochs=12, batch_size=128, learning_rate=0.1)
    return split(x, y, 80, loss="cross_entropy", model=network, training=training)


FOUR: dict[str, tuple[Callable[[], ul.Recipe], tuple[str, ...]]] = {
    "ridge": (ridge, ("retrain", "newton", "recollection")),
    "logistic": (logistic, ("retrain", "newton", "recollection", "safe")),
    "convolutional": (convolutional, ("retrain", "recollection")),
    "fourier": (fourier, ("retrain", "newton", "recollection")),
}
"""each recipe with the methods that serve it"""
