"""Forgetting one person in a converged head, ``newton`` under ``proved``, over what the mathematics alone costs.

``python -m benchmarks converged_update``. CPU seconds with one thread; the sides run alternately. ``update`` is the
service's, from a notification on: of the worker, which is this process, and of the reader, the world and the judge that
it asks. The others train on the same rows in this process. ``maths``: the method's step and the bound.
``retraining``: the built-in training without the person. ``scikit-learn``: its logistic regression to the same
tolerance.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks.crowd import CONVERGED, called, cpu, one_thread
from benchmarks.release import delete, live, worker
from expunge.service.infra.tables import Model, Version
from expunge.workers.runtime.process import Process
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods import load
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet

SAMPLES = tuple(int(each) for each in os.environ.get("BENCH_SAMPLES", "10000,100000").split(","))
UPDATES = 7
EACH = 5
"""samples of one person"""
FEATURES, CLASSES, MAX_DISTANCE = 20, 5, 1e-5
COMPARED = {"maths": "<= 1.5", "retraining": "<= 1.0", "scikit-learn": "reported"}
PROVED = {"method": "newton", "guarantee": "proved", "max_distance": MAX_DISTANCE, "max_accuracy_drop": None}


def rows() -> Iterator[dict[str, Any]]:
    one_thread()
    for samples in SAMPLES:
        sides = measured(samples)
        for other, target in COMPARED.items():
            yield {
                "name": f"forgetting one person in a converged head, n = {samples:,}: update / {other}",
                "value": statistics.median(sides["update"]) / statistics.median(sides[other]),
                "target": target,
                "unit": "CPU ratio",
                "sides": sides,
            }


def measured(samples: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = {"people": samples // EACH, "each": EACH, "features": FEATURES, "classes": CLASSES}
        process, model_id = live(folder, policy=PROVED, training=CONVERGED, **size)
        others = Others(folder)
        sides: dict[str, list[float]] = {each: [] for each in ("update", *COMPARED)}
        busy = worker(process)
        for person in range(UPDATES + 1):
            delete(process, f"p{person}")
            seconds = {"update": cpu(partial(busy.work, model_id))} | others.without(person)
            require_published(process, model_id, person + 2)
            if person:  # the first one of each is not counted
                for side, taken in seconds.items():
                    sides[side].append(taken)
        process.storage.close()
    return sides


class Others:
    """The same recipe in this process, and what forgetting a person costs there."""

    def __init__(self, folder: Path) -> None:
        self.problem = Problem(called(folder))
        self.examples = self.problem.recipe.samples.examples()
        self.method = load("newton")()
        self.state = self.method.prepare(self.problem, self.examples, train(self.problem, self.examples))

    def without(self, person: int) -> dict[str, float]:
        """Return the CPU seconds of each side."""
        gone = torch.arange(person * EACH, (person + 1) * EACH)
        forget, retain = ForgetSet(frozenset({f"p{person}"}), tuple(gone.tolist())), self.examples.without(gone)

        def maths() -> None:
            found = self.method.forget(self.problem, self.state, forget, retain, torch.Generator())
            Minimiser().refine(self.problem, found.state.weights, retain, MAX_DISTANCE)

        x, y = retain.inputs.double().numpy(), retain.targets.numpy()
        fit = LogisticRegression(C=1 / (0.01 * len(x)), tol=1e-8, fit_intercept=False, max_iter=1000)
        with threadpool_limits(1):
            theirs = cpu(lambda: fit.fit(x, y))
        return {"maths": cpu(maths), "retraining": cpu(lambda: train(self.problem, retain)), "scikit-learn": theirs}


def require_published(process: Process, model_id: str, number: int) -> None:
    with process.storage.database.read() as session:
        version = session.get_one(Version, session.get_one(Model, model_id).current_id)
        if version.number != number:
            raise RuntimeError(f"version {version.number} is current, and not {number}: the update was not published")
