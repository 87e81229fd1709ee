"""Exact deletion on a network of one's own: accuracy and cost of ``late`` and ``shards`` beside ``retrain``, on MNIST.

A convolutional network with batch normalisation, dropout and AdamW is trained on the first 8,000 images of
``shared/data/mnist10k``, as 400 people of 20 images each; the last 2,000 are the holdout. An update forgets one person:
for ``late`` one who joined last, for ``shards`` any. Costs are CPU seconds of the update over those of the retraining,
in one process and one thread.

``python -m benchmarks.own_training_mnist [seed ...]`` prints the rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import unlearning as ul
from benchmarks.recollection_mnist import idx
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet, Learned

TRAIN, PEOPLE, PASSES, BATCH = 8_000, 400, 10, 64
METHODS: dict[str, Method] = {
    "retrain": Retrain(),
    "late, core 50 %, last 10 %": Late(),
    "late, core 50 %, last 20 %": Late(passes=(0.8, 0.2)),
    "shards, S = 5, R = 4": Shards(shards=5, slices=4),
}
Row = dict[str, Any]


def network() -> nn.Module:
    """Two convolutions with batch normalisation, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 7 * 7, 10),
    )


def fit(run: ul.Run) -> dict[str, object]:
    """Train with AdamW: a constant step in the core's phases, a falling one in the last or only phase."""
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=2e-3, weight_decay=1e-4)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    passes = max(1, round(PASSES * run.share))
    steps = passes * -(-len(run.inputs) // BATCH)
    falls, step = run.phase not in ("phase 1",), 0
    for _ in range(passes):
        for batch in torch.randperm(len(run.inputs)).split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * (1.0 - step / steps) if falls else 2e-3
            optimizer.zero_grad()
            F.cross_entropy(run.model(run.inputs[batch]), run.targets[batch]).backward()
            optimizer.step()
            step += 1
    return {"optimizer": optimizer.state_dict()}


def recipe(seed: int) -> ul.Recipe:
    images = idx("images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).float() / 255
    labels = idx("labels-idx1-ubyte.gz", 8).long()
    return ul.Recipe(
        model=network,
        samples=ul.Samples(
            [f"image-{k}" for k in range(TRAIN)],
            [f"person-{k % PEOPLE}" for k in range(TRAIN)],
            images[:TRAIN],
            labels[:TRAIN],
        ),
        holdout=(images[TRAIN:], labels[TRAIN:]),
        loss="cross_entropy",
        train=fit,
        seed=seed,
    )


def rows(seeds: tuple[int, ...] = (0,)) -> Iterator[Row]:
    """Yield accuracy and cost of each method, a row for each and seed."""
    torch.set_num_threads(1)
    for seed in seeds:
        whole = 0.0
        for name, method in METHODS.items():
            accuracy, after, seconds, everything = measured(method, recipe(seed))
            whole = whole or everything
            yield {
                "name": f"{name}, seed {seed}: cost of forgetting one person / a retraining",
                "value": seconds / whole,
                "target": "reported",
                "unit": "ratio of CPU time",
                "met": None,
                "sides": {
                    "update_cpu_s": seconds,
                    "retraining_cpu_s": whole,
                    "accuracy": accuracy,
                    "accuracy_after": after,
                    "preparation_cpu_s": everything,
                },
            }


def measured(method: Method, given: ul.Recipe) -> tuple[float, float, float, float]:
    """Return the holdout accuracy before and after one deletion, and the CPU seconds of deletion and preparation."""
    problem, examples = Problem(method.recipe(given)), given.samples.examples()
    start = time.process_time()
    learned = Learned(problem.initial()) if method.trains else train(problem, examples)
    state = method.prepare(problem, examples, learned)
    prepared = time.process_time() - start
    person = next(
        each
        for each in sorted(set(examples.people))
        if not isinstance(method, Late) or method._joins(problem, each) == len(method.passes) - 1
    )
    gone = examples.positions[[each == person for each in examples.people]]
    kept = examples.without(gone)
    start = time.process_time()
    after = method.forget(
        problem, state, ForgetSet(frozenset({person}), tuple(gone.tolist())), kept, torch.Generator()
    ).state
    seconds = time.process_time() - start
    x, y = given.holdout
    return problem.accuracy(state.weights, x, y), problem.accuracy(after.weights, x, y), seconds, prepared


if __name__ == "__main__":
    for each in rows(tuple(int(seed) for seed in sys.argv[1:]) or (0,)):
        print(each, flush=True)
