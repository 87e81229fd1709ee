"""What our gradients, products and training epochs cost beside plain torch, on networks with few and many tensors.

``python -m benchmarks torch_speed``; ``BENCH_IMAGES`` says how many images an epoch of ResNet-18 has (256; the design's
figure is for 2,000). CPU seconds in one thread, both sides in turn in one process, the median of three. Plain torch is
a module, ``backward()`` and an update in place; the product is its gradient differentiated once more.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu import residual_network
from unlearning import Problem, Recipe, Samples, Training
from unlearning.model.curvature import gradient_and_product
from unlearning.model.training import train

REPEATS, TARGET = 3, 1.3
BATCH, RATE = 32, 0.01
IMAGES = int(os.environ.get("BENCH_IMAGES", "256"))
Row = dict[str, Any]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "ResNet-18 without batch normalisation": (residual_network, (3, 32, 32), IMAGES),
    "convolutional network": (convolutional, (1, 28, 28), 2048),
    "perceptron": (perceptron, (1, 28, 28), 2048),
}
"""how it is built, the shape of an input, and the images of an epoch"""


def rows() -> Iterator[Row]:
    """A gradient of one batch, a Hessian-vector product with it, and an epoch of training, for each network."""
    torch.set_num_threads(1)
    for name in MODELS:
        yield from measured(name)


def measured(name: str) -> Iterator[Row]:
    build, shape, images = MODELS[name]
    drawn = torch.Generator().manual_seed(0)
    x, y = torch.randn(images, *shape, generator=drawn), torch.randint(10, (images,), generator=drawn)
    problem = problem_of(build, x, y)
    w, v = problem.initial(), torch.randn(problem.dimension, generator=drawn)
    module = build()
    module.load_state_dict(problem.tensors(w))
    part, labels, examples = x[:BATCH], y[:BATCH], problem.recipe.samples.examples()
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "gradient": (lambda: gradient(module, part, labels), lambda: problem.gradient(w, part, labels)),
        "Hessian-vector product": (
            lambda: product(module, part, labels, v),
            lambda: gradient_and_product(problem, w, part, labels, v),
        ),
        f"epoch of {images:,} images": (lambda: epoch(module, x, y), lambda: train(problem, examples)),
    }
    for what, (plain, ours) in pairs.items():
        yield row(f"{name}, {problem.dimension:,} weights: {what} / plain torch", problem.dimension, plain, ours)


def problem_of(build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> Problem:
    names = [f"image-{place}" for place in range(len(x))]
    training = Training(epochs=1, batch_size=BATCH, learning_rate=RATE, seed=0)
    samples = Samples(ids=names, subjects=names, inputs=x, targets=y)
    return Problem(Recipe(model=build, samples=samples, holdout=(x, y), loss="cross_entropy", training=training))


def gradient(module: nn.Module, x: Tensor, y: Tensor) -> None:
    module.zero_grad()
    torch.autograd.backward(F.cross_entropy(module(x), y))


def product(module: nn.Module, x: Tensor, y: Tensor, v: Tensor) -> None:
    weights = list(module.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(module(x), y), weights, create_graph=True)
    parts = torch.split(v, [each.numel() for each in weights])
    along = torch.stack([(g * p.view_as(g)).sum() for g, p in zip(slopes, parts, strict=True)]).sum()
    torch.autograd.grad(along, weights)


def epoch(module: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for batch in torch.split(torch.randperm(len(x)), BATCH):
        gradient(module, x[batch], y[batch])
        optimizer.step()


def row(name: str, parameters: int, plain: Callable[[], object], ours: Callable[[], object]) -> Row:
    plain()  # the first call allocates
    ours()
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(REPEATS):
        for side, work in (("plain", plain), ("ours", ours)):
            start = time.process_time()
            work()
            seconds[side].append(time.process_time() - start)
    median = {side: statistics.median(found) for side, found in seconds.items()}
    ratio = median["ours"] / median["plain"]
    return {
        "name": name,
        "value": ratio,
        "target": TARGET,
        "unit": "CPU ratio",
        "met": ratio <= TARGET,
        "sides": {**median, "all": seconds, "parameters": parameters},
    }


if __name__ == "__main__":
    for found in rows():
        print(found)
