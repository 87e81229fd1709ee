"""Softmax regression on the 1,797 handwritten digits that ship with scikit-learn: a convex recipe.

Guarantee: `proved`. Register with `--method newton --guarantee proved`.
Cost of a deletion: a few Newton steps.
Delete one person: `expunge delete --subject person-020 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: every coordinate is decayed, and each image is scaled by its own length alone.
The digits name no writers: about 100 people are drawn by a fixed seed.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import unlearning as ul

TRAIN, PEOPLE, SEED = 1437, 100, 0


def features(pixels: np.ndarray) -> torch.Tensor:
    """Pixels (n, 64) -> (n, 65): each row scaled to length 1 by itself, and a constant 1 in place of a bias.

    A scaler fitted on everyone would carry the deleted into every row; a row's own length carries nobody else.
    """
    rows = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
    return torch.tensor(np.hstack([rows, np.ones((len(rows), 1))]), dtype=torch.float32)


def recipe() -> ul.Recipe:
    digits = load_digits()
    random = np.random.default_rng(SEED)
    order = random.permutation(len(digits.target))
    inputs, targets = features(digits.data[order]), torch.tensor(digits.target[order])
    return ul.Recipe(
        model=lambda: torch.nn.Linear(65, 10, bias=False),
        samples=ul.Samples(
            ids=[f"digit-{index:04d}" for index in order[:TRAIN]],
            subjects=[f"person-{person:03d}" for person in random.integers(PEOPLE, size=TRAIN)],
            inputs=inputs[:TRAIN],
            targets=targets[:TRAIN],
        ),
        holdout=(inputs[TRAIN:], targets[TRAIN:]),
        loss="cross_entropy",
        training=ul.Training(epochs=20, learning_rate=1.0, weight_decay=1e-3, seed=SEED, converge=1e-10),
    )
