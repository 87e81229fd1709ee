"""Forgetting one person in a converged head, ``newton`` under ``proved``, over what the mathematics alone costs.

``python -m benchmarks converged_update``. CPU seconds with one thread; the sides run alternately. ``update`` is the
service's, from a notification on: of the worker, which is this process, and of the reader, the world and the judge that
it asks. The others compute on the same rows in this process. ``maths``: the update as a judge makes it, its bound
included. ``retraining``: the built-in training without the person. ``scikit-learn``: its logistic regression to the
same tolerance; ``a warm start of scikit-learn``: the same from the coefficients of everybody. ``the pass of its
bound``: the bound at the new weights, once more.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.cold_fit import fit_of
from benchmarks.crowd import CONVERGED, called, cpu, one_thread
from benchmarks.release import delete, live, worker
from expunge_service.infra.tables import Model, Version
from expunge_workers.runtime.process import Process
from unlearning.bounds.minimiser import Minimiser
from unlearning.model import convex
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Examples, Forgotten, State

SAMPLES = tuple(int(each) for each in os.environ.get("BENCH_SAMPLES", "10000,100000").split(","))
UPDATES = 7
EACH = 5
"""samples of one person"""
FEATURES, CLASSES, MAX_DISTANCE = 20, 5, 1e-5
COMPARED = {"maths": "<= 1.5", "retraining": "<= 1.0", "scikit-learn": "reported"}
MATHS = {"a warm start of scikit-learn": "<= 0.3", "the pass of its bound": "<= 2.0"}
"""what the maths alone is compared with, and how much dearer it may be at ``GOAL`` samples"""
GOAL = 100_000
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
        for other, target in MATHS.items():
            yield {
                "name": f"the maths of a proved update, n = {samples:,}: update / {other}",
                "value": statistics.median(sides["maths"]) / statistics.median(sides[other]),
                "target": target if samples == GOAL else "reported",
                "unit": "CPU ratio",
                "sides": {side: sides[side] for side in ("maths", other)},
            }


def measured(samples: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = {"people": samples // EACH, "each": EACH, "features": FEATURES, "classes": CLASSES}
        process, model_id = live(folder, policy=PROVED, training=CONVERGED, **size)
        others = Others(folder)
        sides: dict[str, list[float]] = {each: [] for each in ("update", *COMPARED, *MATHS)}
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
        self.state = State(train(self.problem, self.examples).weights)
        self.warm = fit_of(len(self.examples)).set_params(warm_start=True)
        self.warm.fit(*arrays_of(self.examples))
        self.coefficients = self.warm.coef_.copy()

    def without(self, person: int) -> dict[str, float]:
        """Return the CPU seconds of each side."""
        gone = torch.arange(person * EACH, (person + 1) * EACH)
        retain = self.examples.without(gone)

        def maths() -> None:
            moved.append(Minimiser().refine(self.problem, Forgotten(self.state), retain, MAX_DISTANCE, {}))

        moved: list[tuple[Tensor, float]] = []
        x, y = arrays_of(retain)
        cold = fit_of(len(x))
        self.warm.coef_, self.warm.intercept_ = self.coefficients.copy(), numpy.zeros(CLASSES)
        self.warm.C = cold.C
        with threadpool_limits(1):
            theirs = {"scikit-learn": cpu(lambda: cold.fit(x, y))}
            theirs["a warm start of scikit-learn"] = cpu(lambda: self.warm.fit(x, y))
        seconds = {"maths": cpu(maths), "retraining": cpu(lambda: train(self.problem, retain))}
        ((weights, bound),) = moved
        if bound > MAX_DISTANCE:
            raise RuntimeError(f"the bound of the update is {bound:.3g}, above {MAX_DISTANCE:g}")
        work = self.problem.double()
        seconds["the pass of its bound"] = cpu(lambda: convex.distance_bound(work, weights, retain))
        return seconds | theirs


def arrays_of(examples: Examples) -> tuple[Any, Any]:
    return examples.inputs.double().numpy(), examples.targets.numpy()


def require_published(process: Process, model_id: str, number: int) -> None:
    with process.storage.database.read() as session:
        version = session.get_one(Version, session.get_one(Model, model_id).current_id)
        if version.number != number:
            raise RuntimeError(f"version {version.number} is current, and not {number}: the update was not published")
