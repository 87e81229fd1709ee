"""Recollection in the HF paper's non-convex setting: a small CNN on the first 1,000 images of ``shared/data/mnist10k``.

The published script's settings (arXiv 2404.01712, ``codebase/MNIST.sh`` and its defaults): 20 epochs, batches of 64,
learning rate 0.05 with decay 0.995 a step, clipping at 10, weight decay 1e-6, two convolutions and two linear layers
with ReLU and max-pooling, dropout off. The paper normalises pixels by (0.1307, 0.3081); raw pixels in [0, 1] stand
beside it. The images belong to 20 people of 50 each: recollections add, so a person's vector is the sum of 50 samples'
vectors, and deleting one person is the paper's 5 %.

``python -m benchmarks.paper_cnn`` prints the table: what registration measures with its default settings (three people
really retrained without) and its verdict. Minutes to an hour.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.recollection_mnist import FOLDER, idx
from unlearning import Problem, Recipe, Samples, Training
from unlearning.methods.recollection import Recollection
from unlearning.model.training import train
from unlearning.quality.distance_left import mean_distance_left
from unlearning.types import Learned, Vectors

COUNT, PEOPLE = 1000, 20
UNSTABLE, STABLE = 0.05, 0.02
Row = dict[str, object]


def rows() -> Iterator[Row]:
    """Every measurement of this file."""
    if not FOLDER.is_dir():
        yield row("recollection, paper's CNN: data not found", None, str(FOLDER))
        return
    torch.set_num_threads(1)
    for pixels in ("raw", "normalised"):
        for rate in (UNSTABLE, STABLE):
            yield measured(pixels, rate)


def measured(pixels: str, rate: float) -> Row:
    """The distance left that registration compares with its threshold: 0 is perfect, 1 is doing nothing."""
    problem, learned = trained(pixels, rate)
    examples = problem.recipe.samples.examples()
    method = Recollection()
    state = method.prepare(problem, examples, learned)
    left = mean_distance_left(method, problem, examples, learned, state, vectors=Vectors(state.vectors))
    report = state.facts["report"]
    assert isinstance(report, dict) and left is not None
    return row(
        f"recollection, paper's CNN, {pixels} pixels, learning rate {rate:g}: distance left",
        left,
        "> 0.7" if rate == UNSTABLE else "< 0.7",
        eta_lambda_max=report["eta_lambda_max_along"],
        clipped_steps=report["clipped_steps"],
        holdout_accuracy=problem.accuracy(learned.weights, *problem.recipe.holdout),
    )


def trained(pixels: str, rate: float) -> tuple[Problem, Learned]:
    inputs, targets = images(pixels)
    recipe = Recipe(
        model=network,
        samples=Samples(
            [f"image-{index}" for index in range(COUNT)],
            [f"person-{index % PEOPLE}" for index in range(COUNT)],
            inputs[:COUNT],
            targets[:COUNT],
        ),
        holdout=(inputs[8000:], targets[8000:]),
        loss="cross_entropy",
        training=Training(
            epochs=20, batch_size=64, learning_rate=rate, decay=0.995, clip=10.0, weight_decay=1e-6, seed=0
        ),
    )
    problem = Problem(recipe)
    return problem, train(problem, recipe.samples.examples())


def network() -> nn.Module:
    """21,840 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def images(pixels: str) -> tuple[Tensor, Tensor]:
    """The 10,000 images (n, 1, 28, 28), raw in [0, 1] or normalised, and their labels (n,)."""
    inputs = idx("images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).float() / 255
    if pixels == "normalised":
        inputs = (inputs - 0.1307) / 0.3081
    return inputs, idx("labels-idx1-ubyte.gz", 8).long()


def row(name: str, value: float | None, target: str, **sides: object) -> Row:
    met = None if value is None else value > 0.7 if target.startswith(">") else value < 0.7
    return {"name": name, "value": value, "target": target, "unit": "ratio", "met": met, "sides": sides}


if __name__ == "__main__":
    for measurement in rows():
        print(measurement, flush=True)
