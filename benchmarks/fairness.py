"""A deletion beside an idle worker, and beside one that is busy for minutes with another model.

API, worker, updater and scheduler run as processes of their own over SQLite and Redis. Deletions are posted one after
another beside an idle worker, and then beside a busy one, in two ways: in a recipe's own ``train``, which never reports
progress, and in a built-in preparation, which looks for deletions between its pieces.
``python -m benchmarks fairness``; ``BENCH_POSTS``: deletions a side (100: some six minutes for each of the two ways).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.latency import CLASSES, FEATURES, REST_SECONDS, wait
from benchmarks.release import RECIPE
from expunge.service.infra.db import Database
from tests.harness import servers, stack
from tests.harness.process import ANY_DISTANCE

POSTS, WARM_UP = int(os.environ.get("BENCH_POSTS", "100")), 3
NEVER_YIELDS = """
import time
import torch
import unlearning as ul

def fit(run):
    end = time.monotonic() + ({seconds} if len(run.inputs) > 100 else 0.0)  # fewer samples are a trial's
    square = torch.ones(256, 256)
    while time.monotonic() < end:
        square @ square
    with torch.no_grad():
        for value in run.model.parameters():
            value += 0.01 * run.inputs.mean(dim=0)

def recipe():
    inputs = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(400) % 2
    names = [f"q{{index}}" for index in range(400)]
    return ul.Recipe(
        model=lambda: torch.nn.Linear(8, 2, bias=False),
        samples=ul.Samples(names, names, inputs, targets),
        holdout=(inputs[:8], targets[:8]),
        loss="cross_entropy",
        train=fit,
    )
"""

IN_PIECES = """
import torch
import unlearning as ul

def recipe():
    inputs = torch.randn({people}, 64, generator=torch.Generator().manual_seed(0))
    targets = torch.arange({people}) % 10
    names = [f"q{{index}}" for index in range({people})]
    return ul.Recipe(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)),
        samples=ul.Samples(names, names, inputs, targets),
        holdout=(inputs[:8], targets[:8]),
        loss="cross_entropy",
        training=ul.Training(epochs=10, batch_size=16, learning_rate=0.05, weight_decay=0.001),
    )
"""


@dataclass(frozen=True)
class Work:
    """What keeps the worker busy: the recipe, the policy of its model, and what its preparation shows once it is."""

    recipe: str
    policy: Mapping[str, Any]
    begun: Callable[[Mapping[str, Any]], bool]


WORKS = {
    "a training that never yields": Work(
        NEVER_YIELDS.format(seconds=600.0),
        {"method": "retrain"},
        lambda state: str(state["preparation"]["phase"]).startswith("train"),
    ),
    "a built-in preparation": Work(
        IN_PIECES.format(people=1500),
        {"method": "recollection", "max_accuracy_drop": None},
        lambda state: bool(state["preparation"]["work_units"]),
    ),
}


def rows() -> Iterator[dict[str, Any]]:
    """Yield the p99 and the median beside a busy worker, for each way of being busy."""
    for name, work in WORKS.items():
        yield from measured(name, work)


def measured(name: str, work: Work) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        home = Path(folder)
        people = 2 * (POSTS + WARM_UP) + 10
        (home / "recipe.py").write_text(RECIPE.format(people=people, features=FEATURES, classes=CLASSES))
        (home / "busy.py").write_text(work.recipe)
        broker = running.enter_context(servers.redis_server()).url
        service = running.enter_context(stack.running(home / "home", home, limits=ANY_DISTANCE, BROKER_URL=broker))
        service.start("updater")
        service.live("recipe", max_accuracy_drop=None)
        database = service.database()
        idle = _waits(service, database, first=0, version=2)
        busy = service.register("busy", **work.policy)
        path = f"/v1/models/{busy}"
        service.eventually(lambda: service.client.get(path), work.begun)
        beside = _waits(service, database, first=len(idle), version=2 + len(idle))
        if service.client.get(path)["status"] != "preparing":
            raise RuntimeError(f"The other model was ready before the {POSTS} deletions were: give it more to do.")
        database.close()
    idle, beside = idle[WARM_UP:], beside[WARM_UP:]
    sides = {"idle": idle, "busy": beside}
    limit = 2 * _p99(idle) + 1.0
    p99, ratio = _p99(beside), median(beside) / median(idle)
    label = f"POST to version beside {name}"
    yield {"name": f"{label}: p99", "value": p99, "target": limit, "unit": "s", "met": p99 <= limit, "sides": sides}
    yield {
        "name": f"{label}: median / idle",
        "value": ratio,
        "target": "reported",
        "unit": "",
        "met": None,
        "sides": sides,
    }


def _waits(service: stack.Stack, database: Database, first: int, version: int) -> list[float]:
    """Return the seconds of each deletion. The first are a process's that loads torch, or opens the model."""
    found = []
    for index in range(WARM_UP + POSTS):
        time.sleep(REST_SECONDS)
        found.append(wait(service, database, f"p{first + index}", version + index))
    return found


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[round(0.99 * (len(seconds) - 1))]


if __name__ == "__main__":
    for each in rows():
        print(each, flush=True)
