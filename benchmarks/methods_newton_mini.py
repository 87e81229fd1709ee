"""Newton's and Mini-Unlearning's cost against retraining, and how near they come to it.

``python -m benchmarks.methods_newton_mini`` prints the table, with ``--json`` one row a line. CPU seconds on the
scikit-learn digits (1,437 training images, about 1 % of the people forgotten) and, where the folder
``EXPUNGE_MNIST`` holds MNIST's test split in IDX format, on its first 8,000 images. Every figure is a ratio of two
things measured in one run; ``rows`` gives name, value, target, unit, met and both sides' raw figures.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.digits import digits
from examples.digits.recipe import features
from unlearning import Problem, Recipe, Samples, Training
from unlearning.accounting.budget import mu_at
from unlearning.methods.mini import Mini
from unlearning.methods.newton import Newton
from unlearning.methods.retrain import Retrain
from unlearning.model.convex import distance_bound
from unlearning.model.method import Method
from unlearning.model.training import train
from unlearning.quality.distance_left import calibration_sets, distance_left, with_distance_left
from unlearning.quality.simulate import left_by
from unlearning.types import Examples, ForgetSet, Learned, Refused, State, Vectors

MNIST = Path(os.environ.get("EXPUNGE_MNIST", Path(__file__).parents[2] / "shared" / "data" / "mnist10k"))
REPEATS = 7
SHARES = (0.1, 0.25, 0.5, 1.0)
"""k/T"""
DAMPINGS = (0.0, 0.1, 1.0, 10.0)
REPEATED = Newton(steps=10, gradient_norm=1e-9)
Row = dict[str, object]


@dataclass(frozen=True)
class Scene:
    """A trained model, who is forgotten, and retraining without them: its weights and CPU seconds."""

    problem: Problem
    examples: Examples
    learned: Learned
    forget: ForgetSet
    retain: Examples
    retrained: Tensor
    retrain_seconds: list[float]

    @classmethod
    def of(cls, recipe: Recipe, share: float = 0.01) -> Scene:
        problem = Problem(recipe)
        examples = recipe.samples.examples()
        learned = train(problem, examples)
        [chosen] = calibration_sets(examples, share, 1, 1)
        forget = replace(chosen, examples=None)
        retain = left_by(examples, chosen)
        method = Retrain()
        state = method.prepare(problem, examples, learned)
        work = lambda: method.forget(problem, state, forget, retain, torch.Generator()).state.weights  # noqa: E731
        return cls(problem, examples, learned, forget, retain, work(), seconds(work))

    def release(self, method: Method, state: State) -> Tensor:
        return method.forget(self.problem, state, self.forget, self.retain, torch.Generator()).state.weights

    def distance_left(self, weights: Tensor) -> float:
        return distance_left(self.learned.weights, weights, self.retrained)


def rows() -> Iterator[Row]:
    """Every measurement of this file, on one thread: two would share the work unevenly."""
    torch.set_num_threads(1)
    for name, recipe in convex_recipes():
        yield from newton_rows(name, recipe)
        if name.startswith("digits"):
            yield from proved_rows(name, recipe)
    yield from lissa_rows()
    for damping in DAMPINGS:
        yield damped_row(damping)
    for name, recipe in descents():
        yield from mini_rows(name, recipe)


def newton_rows(name: str, recipe: Recipe) -> Iterator[Row]:
    """One step at a relative residual of 1e-6 over retraining to a gradient norm of 1e-10."""
    scene = Scene.of(recipe)
    method = Newton(residual=1e-6)
    state = method.prepare(scene.problem, scene.examples, scene.learned)
    fast = seconds(lambda: scene.release(method, state))
    cost = statistics.median(fast) / statistics.median(scene.retrain_seconds)
    yield row(f"newton {name}: time / retrain's", cost, "<= 0.2", newton=fast, retrain=scene.retrain_seconds)
    left = scene.distance_left(scene.release(method, state))
    yield row(f"newton {name}: distance to retraining / untouched's", left, "<= 0.05", newton=left, untouched=1.0)


def proved_rows(name: str, recipe: Recipe) -> Iterator[Row]:
    """Holdout accuracy with the noise that the proved bound asks for at epsilon 1, delta 1e-5: the mean of 20 draws."""
    scene = Scene.of(recipe)
    double = scene.problem.double()
    x, y = recipe.holdout
    plain = [scene.problem.accuracy(w.float(), x, y) for w in (scene.learned.weights, scene.retrained)]
    generator = torch.Generator().manual_seed(0)
    for label, method in (("one step", Newton()), ("repeated", REPEATED)):
        state = method.prepare(scene.problem, scene.examples, scene.learned)
        weights = scene.release(method, state).double()
        bound = distance_bound(double, weights, scene.retain)
        noise_std = bound / mu_at(1.0, 1e-5)
        noisy = (
            weights + noise_std * torch.randn(len(weights), dtype=torch.float64, generator=generator) for _ in range(20)
        )
        accuracy = statistics.mean(double.accuracy(w, x.double(), y) for w in noisy)
        raw = {"bound": bound, "noise_std": noise_std, "before": plain[0], "retrained": plain[1]}
        yield row(f"newton {name}, {label}: holdout accuracy at epsilon 1", accuracy, "reported", **raw)


def damped_row(damping: float) -> Row:
    """What preparation on the convolutional network measures, or why it refuses."""
    recipe = digits("convolutional")
    problem, examples = Problem(recipe), recipe.samples.examples()
    try:
        method, learned = Newton(damping=damping), train(problem, examples)
        made = method.prepare(problem, examples, learned)
        state = with_distance_left(method, problem, examples, learned, made, vectors=Vectors({}), threshold=1e9)
    except Refused as error:
        return row(f"newton digits convolutional, damping {damping:g}", None, "reported", refused=str(error))
    report = state.facts["report"]
    assert isinstance(report, dict) and isinstance(report["distance_left"], float)
    return row(f"newton digits convolutional, damping {damping:g}", report["distance_left"], "reported", report=report)


def lissa_rows() -> Iterator[Row]:
    """Products of LiSSA over those of conjugate gradients, to a residual of about 1e-4 (the raw figures say)."""
    scene = Scene.of(digits())
    products = {}
    for solver, depth in (("conjugate-gradients", 1), ("lissa", 2000)):
        method = Newton(solver=solver, residual=1e-4, lissa_depth=depth)
        state = method.prepare(scene.problem, scene.examples, scene.learned)
        done = method.forget(scene.problem, state, scene.forget, scene.retain, torch.Generator())
        products[solver] = done.evidence["steps"]
    used = {solver: steps[0]["products"] for solver, steps in products.items()}  # type: ignore[index,call-overload]
    ratio = used["lissa"] / used["conjugate-gradients"]
    yield row("newton digits: LiSSA's products / conjugate gradients'", ratio, "reported", **products)


def mini_rows(name: str, recipe: Recipe) -> Iterator[Row]:
    """An update's seconds over k/T of retraining's, and what it leaves of the distance to retraining."""
    scene = Scene.of(recipe)
    total = len(scene.learned.trajectory or ())
    for share in SHARES:
        for products in ("exact", "secant"):
            method = Mini(steps=max(1, round(share * total)), products=products, amplification=1e9)
            state = method.prepare(scene.problem, scene.examples, scene.learned)
            fast = seconds(lambda m=method, s=state: scene.release(m, s))
            cost = statistics.median(fast) / statistics.median(scene.retrain_seconds)
            label = f"mini {products} {name} k/T={share}"
            yield row(f"{label}: time / retrain's", cost, "reported", mini=fast, retrain=scene.retrain_seconds)
            left = scene.distance_left(scene.release(method, state))
            yield row(f"{label}: distance to retraining / untouched's", left, "reported", mini=left, untouched=1.0)


def convex_recipes() -> Iterator[tuple[str, Recipe]]:
    for decay in (1e-2, 1e-3):
        recipe = digits()
        yield f"digits, decay {decay:g}", replace(recipe, training=replace(recipe.training, weight_decay=decay))
    if MNIST.is_dir():
        yield "MNIST 8,000, decay 0.001", mnist(MNIST)


def descents() -> Iterator[tuple[str, Recipe]]:
    training = Training(epochs=20, batch_size=64, learning_rate=1.0, weight_decay=1e-3)
    yield "digits softmax", replace(digits(), training=training)
    yield "digits convolutional", digits("convolutional")


def mnist(folder: Path, count: int = 8000) -> Recipe:
    pixels = np.frombuffer(gzip.decompress((folder / "images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / "labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    inputs, targets = features(pixels.reshape(-1, 784).astype(np.float64)), torch.tensor(labels.astype(np.int64))
    names = [f"image-{index}" for index in range(count)]
    return Recipe(
        model=lambda: nn.Linear(785, 10, bias=False),
        samples=Samples(names, names, inputs[:count], targets[:count]),
        holdout=(inputs[count:], targets[count:]),
        loss="cross_entropy",
        training=Training(epochs=20, learning_rate=1.0, weight_decay=1e-3, converge=1e-10),
    )


def seconds(work: Callable[[], object]) -> list[float]:
    """CPU seconds of several runs, after one that warms up."""
    work()
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return taken


def row(name: str, value: float | None, target: str, **raw: object) -> Row:
    met = None if value is None or target == "reported" else value <= float(target.removeprefix("<= "))
    return {"name": name, "value": value, "target": target, "unit": "ratio", "met": met, "raw": raw}


if __name__ == "__main__":
    for measured in rows():
        shown = "refused" if measured["value"] is None else f"{measured['value']:.3f}"
        line = f"{shown:>9} {measured['target']:9} {measured['name']}"
        print(json.dumps(measured) if "--json" in sys.argv else line, flush=True)
