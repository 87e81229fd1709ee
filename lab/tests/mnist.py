"""Softmax regression on 8,000 images of MNIST, as convex as the digits and five times as large; 2,000 are held out.

Reads the IDX files of MNIST's public test split (10,000 images) from the folder that ``EXPUNGE_MNIST`` names, else
from ``../shared/data/mnist10k``. Nothing is downloaded. The images name no writers: 100 people are drawn by a fixed
seed.
"""

import gzip
import os
from pathlib import Path

import numpy as np
import torch

import unlearning as ul

FOLDER = Path(os.environ.get("EXPUNGE_MNIST", Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist10k"))
TRAIN, PEOPLE, SEED = 8000, 100, 0


def features(pixels: np.ndarray) -> torch.Tensor:
    """Pixels (n, 784) -> (n, 785): each row scaled to length 1 by itself, and a constant 1 in place of a bias."""
    rows = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
    return torch.tensor(np.hstack([rows, np.ones((len(rows), 1))]), dtype=torch.float32)


def idx(name: str, header: int) -> np.ndarray:
    """The bytes of one file behind its header, as (n,) float64.

    Raises:
        RecipeError: there is no such file.
    """
    path = FOLDER / name
    if not path.is_file():
        raise ul.RecipeError(f"{path} is not there.", "Set EXPUNGE_MNIST to the folder with MNIST's test split as .gz.")
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header).astype(np.float64)


def recipe() -> ul.Recipe:
    inputs = features(idx("images-idx3-ubyte.gz", 16).reshape(-1, 784))
    targets = torch.tensor(idx("labels-idx1-ubyte.gz", 8), dtype=torch.int64)
    people = np.random.default_rng(SEED).integers(PEOPLE, size=TRAIN)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(785, 10, bias=False),
        samples=ul.Samples(
            ids=[f"image-{index:04d}" for index in range(TRAIN)],
            subjects=[f"person-{person:03d}" for person in people],
            inputs=inputs[:TRAIN],
            targets=targets[:TRAIN],
        ),
        holdout=(inputs[TRAIN:], targets[TRAIN:]),
        loss="cross_entropy",
        training=ul.Training(epochs=20, learning_rate=1.0, weight_decay=1e-3, seed=SEED, converge=1e-10),
    )
