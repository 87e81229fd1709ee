"""Exact deletion on networks with their own training: accuracy and cost of ``late`` and ``shards``, and ``retrain``.

Two data sets of people. **MNIST**: the first 8,000 images of ``shared/data/mnist10k`` as 400 people of 20 images each,
the last 2,000 are the holdout; a convolutional network with batch normalisation, dropout, AdamW and shifted images.
**Fair's affairs**: 5,000 of the 6,366 women of the package ``statsmodels``, one row each, the others are the holdout; a
network of two layers on eight answers of hers. MNIST's settings (batch size, step size, shifts, the first layer) were
chosen inside the training part: trained on its first 320 people and compared on the other 80, with seed 0. Fair's are
the first that were tried.

A cost is counted: how many times a sample is visited when one person is forgotten, over those of a retraining, as the
mean over everyone (``late``: also over those who joined last). ``sides`` holds every run of the method and of
``retrain`` with the same seeds, the CPU seconds of one such update and of the retraining in one thread among them.

``python -m benchmarks.own_training [seed ...]`` prints the rows; without seeds, five for the first three methods and
three for the others.
"""

from __future__ import annotations

import csv
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul
from benchmarks.recollection_mnist import idx
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Examples, ForgetSet, Learned

HEADLINES: dict[str, Method] = {
    "retrain": Retrain(),
    "late, core 50 %, last 10 %": Late(),
    "shards, S = 5, R = 4": Shards(shards=5, slices=4),
}
REST: dict[str, Method] = {
    "late, core 50 %, last 20 %": Late(phase_shares=(0.8, 0.2)),
    "late, core 50 %, then 30 %, then all": Late(early_share=(0.5, 0.8), phase_shares=(0.7, 0.2, 0.1)),
    "both: shards, S = 5, core 25 %, last 10 %": Shards(shards=5, early_share=(0.25,), phase_shares=(0.9, 0.1)),
    "shards, S = 10, R = 4": Shards(shards=10, slices=4),
    "shards, S = 20, R = 4, a head": Shards(shards=20, slices=4, stacked=0.5),
}
METHODS = HEADLINES | REST
TARGETS = {
    "late, core 50 %, last 10 %": (0.6, 0.105),
    "late, core 50 %, then 30 %, then all": (0.3, None),
    "shards, S = 5, R = 4": (0.6, 0.155),
    "shards, S = 20, R = 4, a head": (1.3, 0.04),
}
"""at most so many points of accuracy lost, and at most such a cost; for ``late``, of those who joined last"""
Row = dict[str, Any]
Fit = Callable[[ul.Run], dict[str, object]]


@dataclass(frozen=True)
class Data:
    """A data set of people, and how a network is trained on it."""

    draws: int
    """whose deletions are counted"""
    passes: int
    batch: int
    rate: float
    augment: Callable[[Tensor], Tensor]
    recipe: Callable[[Fit, int], ul.Recipe]

    def fit(self, run: ul.Run) -> dict[str, object]:
        """Train with AdamW: a constant step, which falls along a cosine in the last or only phase."""
        optimizer = torch.optim.AdamW(run.model.parameters(), lr=self.rate, weight_decay=1e-2, fused=True)
        if run.state is not None:
            optimizer.load_state_dict(run.state["optimizer"])
        passes = self.count(run)
        steps, step = passes * -(-len(run.inputs) // self.batch), 0
        for _ in range(passes):
            for batch in torch.randperm(len(run.inputs)).split(self.batch):
                if len(batch) == 1:
                    continue  # batch normalisation has no statistics of one row
                for group in optimizer.param_groups:
                    group["lr"] = self.rate * (0.5 + 0.5 * math.cos(math.pi * step / steps) if run.last else 1.0)
                optimizer.zero_grad()
                F.cross_entropy(run.model(self.augment(run.inputs[batch])), run.targets[batch]).backward()
                optimizer.step()
                step += 1
        return {"optimizer": optimizer.state_dict()}

    def count(self, run: ul.Run) -> int:
        return max(1, round(self.passes * run.share))


def network() -> nn.Module:
    """Build two convolutions with batch normalisation, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 7 * 7, 10),
    )


def shifted(images: Tensor) -> Tensor:
    """Move every image (n, 1, 28, 28) by up to two pixels, each by its own draw."""
    padded, window = F.pad(images[:, 0], (2, 2, 2, 2)), torch.arange(28)
    down, right = torch.randint(0, 5, (2, len(images), 1))
    rows, columns = (down + window)[:, :, None], (right + window)[:, None, :]
    return padded[torch.arange(len(images))[:, None, None], rows, columns][:, None]


@cache
def mnist() -> tuple[Tensor, Tensor]:
    images = idx("images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).float() / 255
    return images, idx("labels-idx1-ubyte.gz", 8).long()


def digits(fit: Fit, seed: int) -> ul.Recipe:
    images, labels = mnist()
    people = [f"person-{k % 400}" for k in range(8_000)]
    samples = ul.Samples([f"image-{k}" for k in range(8_000)], people, images[:8_000], labels[:8_000])
    return ul.Recipe(network, samples, (images[8_000:], labels[8_000:]), "cross_entropy", train=fit, seed=seed)


def tabular() -> nn.Module:
    """Build two layers with batch normalisation and dropout."""
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))


@cache
def affairs() -> tuple[Tensor, Tensor]:
    """Return each woman's answers, scaled by round numbers that nobody was asked for, and whether she had an affair."""
    package = find_spec("statsmodels")
    if package is None or package.origin is None:
        raise FileNotFoundError("The data come with statsmodels: pip install -e .[benchmarks]")
    with (Path(package.origin).parent / "datasets" / "fair" / "fair.csv").open() as file:
        rows = torch.tensor([[float(value) for value in row] for row in list(csv.reader(file))[1:]])
    # The file is ordered by the answer.
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    scales = torch.tensor([5.0, 40.0, 20.0, 5.0, 4.0, 20.0, 6.0, 6.0])
    return rows[:, :8] / scales, (rows[:, 8] > 0).long()


def women(fit: Fit, seed: int) -> ul.Recipe:
    answers, had = affairs()
    ids = [f"row-{k}" for k in range(5_000)]
    samples = ul.Samples(ids, [f"woman-{k}" for k in range(5_000)], answers[:5_000], had[:5_000])
    return ul.Recipe(tabular, samples, (answers[5_000:], had[5_000:]), "cross_entropy", train=fit, seed=seed)


DATA = {
    "MNIST": Data(200, 10, 32, 4e-3, shifted, digits),
    "Fair's affairs": Data(40, 10, 32, 2e-3, lambda answers: answers, women),
}


def rows(seeds: tuple[int, ...] = ()) -> Iterator[Row]:
    """Yield what each method loses and costs, on both data sets."""
    torch.set_num_threads(1)
    for data in DATA:
        try:
            yield from summed(measured(data, name, seed) for name in METHODS for seed in seeds or seeds_of(name))
        except FileNotFoundError as missing:
            name, sides = f"{data}: late and shards", {"not_run": str(missing)}
            yield {"name": name, "value": None, "target": "reported", "unit": "points", "met": None, "sides": sides}


def seeds_of(name: str) -> tuple[int, ...]:
    return tuple(range(5 if name in HEADLINES else 3))


def measured(data: str, name: str, seed: int) -> Row:
    """Return accuracy before and after one deletion, CPU seconds of both, and the counted costs."""
    method, chosen = METHODS[name], DATA[data]
    recipe = chosen.recipe(chosen.fit, seed)
    problem, examples = Problem(method.recipe(recipe)), recipe.samples.examples()
    start = time.process_time()
    learned = Learned(problem.initial()) if method.trains else train(problem, examples)
    state = method.prepare(problem, examples, learned)
    prepared = time.process_time() - start
    people = last_to_join(method, problem, examples)
    forget, kept = without(examples, random.Random(seed).choice(people))
    start = time.process_time()
    after = method.forget(problem, state, forget, kept, torch.Generator()).state
    return {
        "data": data,
        "method": name,
        "seed": seed,
        "accuracy": 100 * problem.accuracy(state.weights, *recipe.holdout),
        "accuracy_after": 100 * problem.accuracy(after.weights, *recipe.holdout),
        "preparation_cpu_s": prepared,
        "update_cpu_s": time.process_time() - start,
        **counted(method, chosen, seed),
    }


def last_to_join(method: Method, problem: Problem, examples: Examples) -> list[str]:
    """Return the people who joined last under ``late``, and everyone under another method."""
    if not isinstance(method, Late):
        return sorted(examples.people.distinct())
    joined = method.order.joined(problem, examples).tolist()
    return sorted(
        {each for each, phase in zip(examples.people, joined, strict=True) if phase == len(method.phase_shares) - 1}
    )


def without(examples: Examples, person: str) -> tuple[ForgetSet, Examples]:
    gone = examples.positions[[each == person for each in examples.people]]
    return ForgetSet(frozenset({person}), tuple(gone.tolist())), examples.without(gone)


def counted(method: Method, data: Data, seed: int) -> Row:
    """Return the cost of forgetting one person, counted in visits of samples over those of a retraining.

    The methods run as they are, on a recipe whose training only counts, for some people drawn at random. What a head
    costs is not in it.
    """
    visits = 0

    def count(run: ul.Run) -> dict[str, object]:
        nonlocal visits
        visits += data.count(run) * len(run.inputs)
        return {}

    recipe = data.recipe(count, seed)
    if isinstance(method, Shards):
        method = replace(method, stacked=0.0)
    problem, examples = Problem(method.recipe(recipe)), recipe.samples.examples()
    state = method.prepare(problem, examples, Learned(problem.initial()))
    whole = data.passes * len(examples)

    def mean(people: list[str]) -> float:
        nonlocal visits
        visits, asked = 0, random.Random(seed).sample(people, min(data.draws, len(people)))
        for person in asked:
            forget, kept = without(examples, person)
            method.forget(problem, state, forget, kept, torch.Generator())
        return visits / len(asked) / whole

    return {
        "cost_of_anyone": mean(sorted(examples.people.distinct())),
        "cost_of_the_last": mean(last_to_join(method, problem, examples)),
    }


def summed(runs: Iterable[Row]) -> Iterator[Row]:
    """Yield two rows for each method: points of accuracy lost against ``retrain`` with the same seed, and the cost."""
    runs = list(runs)
    whole = {run["seed"]: run for run in runs if run["method"] == "retrain"}
    for name in METHODS:
        mine = [run for run in runs if run["method"] == name and run["seed"] in whole]
        if not mine:
            continue
        lost = [whole[run["seed"]]["accuracy"] - run["accuracy"] for run in mine]
        points, cost = TARGETS.get(name, (None, None))
        others = [whole[run["seed"]] for run in mine]
        sides = {"runs": mine, "retrain": others, "accuracy": interval([run["accuracy"] for run in mine])}
        label = f"{mine[0]['data']}, {name}"
        if name != "retrain":
            yield row(f"{label}: accuracy lost", interval(lost), points, "points", sides)
        late = name.startswith("late")
        costs = [run["cost_of_the_last" if late else "cost_of_anyone"] for run in mine]
        cpu = [run["update_cpu_s"] / whole[run["seed"]]["preparation_cpu_s"] for run in mine]
        sides = {"anyone": interval([run["cost_of_anyone"] for run in mine]), "cpu_of_one_update": cpu}
        who = "a late person" if late else "a person"
        yield row(f"{label}: cost of forgetting {who}", interval(costs), cost, "retrainings", sides)


def interval(values: list[float]) -> tuple[float, float | None]:
    """Return the mean, and half the width of its 95 % interval by Student's t; None for one value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    return mean, spread * float(student.ppf(0.975, len(values) - 1))


def row(name: str, value: tuple[float, float | None], most: float | None, unit: str, sides: Row) -> Row:
    mean, half = value
    target = "reported" if most is None else f"<= {most:g}"
    met = None if most is None else mean <= most
    return {"name": name, "value": mean, "target": target, "unit": unit, "met": met, "sides": sides | {"+-": half}}


if __name__ == "__main__":
    for each in rows(tuple(int(seed) for seed in sys.argv[1:])):
        print(
            {key: value for key, value in each.items() if key != "sides"} | {"+-": each["sides"].get("+-")}, flush=True
        )
