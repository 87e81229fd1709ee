"""What the recipes of this folder share: their columns, and a ridge regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from unlearning.rows import Rows

NUMBERS = ("weight", "pulse")


def inputs_of(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    return rows.numpy(*NUMBERS).astype(np.float64)


def fit(x: Any, y: Any, ridge: float = 1.0) -> Any:
    """Return the weights (k + 1,) of a ridge regression of y on x (n, k), the constant last."""
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
