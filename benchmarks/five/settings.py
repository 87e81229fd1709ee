"""What the table is measured on: data, a model that is stopped early, and people who own several samples each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from benchmarks.digits import digits
from benchmarks.five.adult import adult
from benchmarks.papers.images import mnist
from unlearning import Recipe, Samples, Training

PEOPLE = 100


@dataclass(frozen=True)
class Setting:
    """A data set with a model. ``says`` describes the training on the page."""

    data: str
    model: str
    says: str
    recipe: Callable[[], Recipe]


def digits_softmax() -> Recipe:
    """Return ``examples/digits/descent.py``: softmax regression stopped after 200 full-batch steps."""
    training = Training(epochs=200, learning_rate=3.0, weight_decay=1e-3, seed=0)
    return replace(digits(), training=training)


def digits_network() -> Recipe:
    """Return ``examples/digits/convolutional.py``."""
    return digits("convolutional")


def mnist_softmax() -> Recipe:
    """Return softmax regression of 8,000 of MNIST's test images, stopped after 200 steps of 200 images.

    Raises:
        FileNotFoundError: the images are not there; the message says what to set.
    """
    images = mnist()
    return Recipe(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
        samples=_owned("image", images.inputs, images.targets),
        holdout=(images.test_inputs, images.test_targets),
        loss="cross_entropy",
        training=Training(epochs=5, batch_size=200, learning_rate=0.1, weight_decay=1e-3, seed=0),
    )


def adult_softmax() -> Recipe:
    """Return softmax regression of 4,000 of Adult's rows, stopped after 100 steps of 200 rows.

    Raises:
        FileNotFoundError: the files are not there; the message says what to set.
    """
    (inputs, targets), unseen = adult(4000, 1000)
    features = inputs.shape[1]
    return Recipe(
        model=lambda: nn.Linear(features, 2),
        samples=_owned("row", inputs, targets),
        holdout=unseen,
        loss="cross_entropy",
        training=Training(epochs=5, batch_size=200, learning_rate=0.3, weight_decay=1e-3, seed=0),
    )


def _owned(noun: str, inputs: Tensor, targets: Tensor) -> Samples:
    """Return the samples with an owner each, drawn at random."""
    owners = torch.randint(PEOPLE, (len(inputs),), generator=torch.Generator().manual_seed(0)).tolist()
    ids = [f"{noun}-{place:04d}" for place in range(len(owners))]
    return Samples(ids, [f"person-{owner:03d}" for owner in owners], inputs, targets)


SETTINGS = (
    Setting("digits", "softmax", "softmax regression, stopped after 200 full-batch steps", digits_softmax),
    Setting("digits", "network", "a convolutional network with tanh, 12 passes in batches of 128", digits_network),
    Setting("mnist", "softmax", "softmax regression, stopped after 5 passes in batches of 200", mnist_softmax),
    Setting(
        "adult",
        "softmax",
        "softmax regression, stopped after 5 passes in batches of 200, on rows whose owners are drawn at random",
        adult_softmax,
    ),
)
