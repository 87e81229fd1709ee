"""Softmax regression on the 1,797 handwritten digits that ship with scikit-learn: a convex recipe.

Guarantee: `proved`. Register with `--method newton --guarantee proved`.
Cost of a deletion: a few Newton steps.
Delete one person: `expunge delete --subject person-020 --regulation gdpr --wait`. The request's page has the letter.
You declare that `unseen.npy`, by which accuracy is measured, has nobody's images.

``digits.parquet`` has 1,437 images of 100 people; the digits name no writers, so ``data.py`` drew them.
"""

from pathlib import Path

import numpy as np
import torch

import unlearning as ul

SEED = 0
ROWS = ul.table("digits.parquet", person="person", id="id")
UNSEEN = ul.public("unseen.npy", sha256="e8263e6e186aa3c7165d22bcc75e857d35d36d3c540ff96248cc2fa596f68910")


def features(pixels: np.ndarray) -> torch.Tensor:
    """Pixels (n, 64) -> (n, 65): each row scaled to length 1 by itself, and a constant 1 in place of a bias."""
    rows = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
    return torch.tensor(np.hstack([rows, np.ones((len(rows), 1))]), dtype=torch.float32)


def recipe(rows: ul.Rows = ROWS, unseen: Path = UNSEEN) -> ul.Recipe:
    images = np.load(unseen)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(65, 10, bias=False),
        samples=rows.samples(features(rows["pixels"]), rows["digit"], at=rows["__row"]),
        holdout=(features(images[:, :64]), torch.tensor(images[:, 64]).long()),
        loss="cross_entropy",
        training=ul.Training(epochs=20, learning_rate=1.0, weight_decay=1e-3, seed=SEED, converge=1e-10),
    )
