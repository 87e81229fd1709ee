"""Tables, and each kind of trees on them, for the tests and for a process of its own."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from torch import Tensor

import unlearning as ul
from unlearning.recipe import Run

EDGES = [float(each) for each in np.linspace(-2.0, 2.0, 33)]
NUMBERS = ul.grid(a=EDGES, b=EDGES, c=EDGES, d=[0.5, 1.5, 2.5])
WITH_CATEGORY = ul.grid(a=EDGES, b=EDGES, c=EDGES, d=5)
PEOPLE = 60


def table(missing: bool = False) -> tuple[Tensor, Tensor, list[str]]:
    """Inputs (n, 4), real targets (n,) and whose each row is."""
    drawn = torch.Generator().manual_seed(4)
    x = torch.randn(900, 4, generator=drawn, dtype=torch.float64)
    x[:, 3] = (2 * x[:, 3]).round().clamp(0, 4)
    if missing:
        x[::9, 1] = float("nan")
    y = x[:, 0] + x[:, 1].nan_to_num(0.3) * x[:, 2] + 0.3 * torch.randn(900, generator=drawn)
    return x, y, [f"p{row % PEOPLE:02d}" for row in range(900)]


def two(y: Tensor) -> Tensor:
    return (y > 0).long()


def three(y: Tensor) -> Tensor:
    return (y > -0.7).long() + (y > 0.7).long()


def _same(y: Tensor) -> Tensor:
    return y


KINDS: dict[str, tuple[Any, str, Any]] = {
    "lightgbm": (ul.trees.lightgbm(WITH_CATEGORY, rounds=12, num_leaves=7), "binary_logistic", two),
    "lightgbm of three": (
        ul.trees.lightgbm(NUMBERS, rounds=6, classes=3, bagging_fraction=0.7, bagging_freq=1),
        "cross_entropy",
        three,
    ),
    "lightgbm, numbers": (ul.trees.lightgbm(NUMBERS, rounds=12, objective="regression"), "squared_error", _same),
    "xgboost": (ul.trees.xgboost(NUMBERS, rounds=12, max_depth=4, subsample=0.8), "binary_logistic", two),
    "xgboost of three": (
        ul.trees.xgboost(NUMBERS, rounds=6, max_depth=3, classes=3),
        "cross_entropy",
        three,
    ),
    "xgboost, numbers": (
        ul.trees.xgboost(NUMBERS, rounds=12, objective="reg:squarederror", max_depth=4),
        "squared_error",
        _same,
    ),
    "hist": (
        ul.trees.sklearn(NUMBERS, HistGradientBoostingClassifier(max_iter=12, random_state=0), classes=2),
        "binary_logistic",
        two,
    ),
    "hist of three": (
        ul.trees.sklearn(NUMBERS, HistGradientBoostingClassifier(max_iter=6, random_state=0), classes=3),
        "cross_entropy",
        three,
    ),
    "hist, numbers": (
        ul.trees.sklearn(NUMBERS, HistGradientBoostingRegressor(max_iter=12, random_state=0)),
        "squared_error",
        _same,
    ),
    "forest": (
        ul.trees.sklearn(NUMBERS, RandomForestClassifier(8, max_depth=6), classes=3),
        "cross_entropy",
        three,
    ),
    "extra trees": (
        ul.trees.sklearn(NUMBERS, ExtraTreesRegressor(8, max_depth=6, random_state=0)),
        "squared_error",
        _same,
    ),
}
"""model and training, loss, and what of the targets is learned"""


def run_of(x: Tensor, y: Tensor, seed: int = 7, weights: Tensor | None = None) -> Run:
    people = torch.zeros(len(x), dtype=torch.int64)
    return Run(torch.nn.Identity(), x, y, "all", 1.0, seed, None, lambda _: None, people, weights=weights)


def digests() -> dict[str, str]:
    """The sha256 of what each kind trains here, on a table with missing values."""
    x, y, _ = table(missing=True)
    return {
        name: hashlib.sha256(train(run_of(x, seen(y)))).hexdigest() for name, ((_, train), _, seen) in KINDS.items()
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(digests()))
