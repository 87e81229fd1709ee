"""Images by wavelet scattering and a softmax head: a network's accuracy, and a proof.

Guarantee: `proved`. Register with `--method newton --guarantee proved`.
Cost of a deletion: a few Newton steps on the head; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-020 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: the wavelets follow from the size of the images, and each image is normalised by itself.

The images are scikit-learn's 1,797 handwritten digits of 8 x 8 pixels. They name no writers: 100 people are drawn by a
fixed seed. The published file holds the head: call ``features`` before it to serve it.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import unlearning as ul
from unlearning.features import Scattering

TRAIN, PEOPLE, SEED = 1437, 100, 0


def features(pixels: np.ndarray) -> torch.Tensor:
    """Return scattering coefficients and a 1 in place of a bias, (n, 145), of images (n, 8, 8) with values up to 16.

    Eight pixels leave room for one scale; images of 28 x 28 take two.
    """
    coefficients = Scattering(8, 8, scales=1)(torch.tensor(pixels / 16))
    return torch.cat([coefficients, torch.ones(len(pixels), 1)], dim=1).float()


def recipe() -> ul.Recipe:
    digits = load_digits()
    random = np.random.default_rng(SEED)
    order = random.permutation(len(digits.target))
    inputs, targets = features(digits.images[order]), torch.tensor(digits.target[order])
    return ul.Recipe(
        model=lambda: torch.nn.Linear(inputs.shape[1], 10, bias=False),
        samples=ul.Samples(
            ids=[f"digit-{index:04d}" for index in order[:TRAIN]],
            subjects=[f"person-{person:03d}" for person in random.integers(PEOPLE, size=TRAIN)],
            inputs=inputs[:TRAIN],
            targets=targets[:TRAIN],
        ),
        holdout=(inputs[TRAIN:], targets[TRAIN:]),
        loss="cross_entropy",
        training=ul.Training(epochs=20, learning_rate=1.0, weight_decay=1e-4, seed=SEED, converge=1e-10),
    )
