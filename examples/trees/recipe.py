"""Boosted trees on a table: is this tumour benign? LightGBM, published as the library's own text file.

Guarantee: `exact`. Register with `--method shards`: five boosters, each on a fifth of the people, in one file that
``lightgbm.Booster(model_file=...)`` opens.
Cost of a deletion: one of the five is trained again; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject patient-280 --regulation gdpr --wait`. The request's page has the letter.
You declare the grid public (``public=``): it says where trees may split, and it is written here from what the
measurements can be, never from their quantiles.

569 patients of the Wisconsin hospitals, one row each, come with scikit-learn. Needs ``pip install "expunge[trees]"``.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

import unlearning as ul

RANGES = {
    "radius": (5.0, 30.0),
    "texture": (8.0, 45.0),
    "smoothness": (0.04, 0.18),
    "concavity": (0.0, 0.45),
    "symmetry": (0.1, 0.32),
    "worst_radius": (6.0, 38.0),
    "worst_texture": (10.0, 52.0),
    "worst_concavity": (0.0, 1.3),
}
"""each column with the least and the greatest value that are told apart, from experience"""
COLUMNS = [0, 1, 4, 6, 8, 20, 21, 26]
BINS = 32
PUBLIC = {"train": "1e3ae0a29747ab6b1a11e25bf75f24ecf934bc0702b309ba165df82e6802f582"}
"""what `expunge check` and a refused registration print"""

GRID = ul.grid(**{name: np.linspace(low, high, BINS - 1) for name, (low, high) in RANGES.items()})
MODEL, TRAIN = ul.trees.lightgbm(GRID, rounds=60, num_leaves=7, learning_rate=0.1, min_data_in_leaf=5)


def recipe() -> ul.Recipe:
    found = load_breast_cancer()
    people = [f"patient-{row:03d}" for row in range(len(found.data))]
    everyone = ul.Samples(
        ids=[f"{person}/biopsy" for person in people],
        subjects=people,
        inputs=torch.tensor(found.data[:, COLUMNS]),
        targets=torch.tensor(found.target),
    )
    samples, holdout, holdout_subjects = everyone.split()
    return ul.Recipe(
        model=MODEL,
        train=TRAIN,
        samples=samples,
        holdout=holdout,
        holdout_subjects=holdout_subjects,
        loss="binary_logistic",
        public=PUBLIC,
    )
