"""From POST to the published version while the only worker host is in a training of another model that never yields.

API, worker, updater and scheduler run as processes of their own over SQLite with Redis. Deletions are posted one after
another beside an idle worker, and then beside a worker that computes in a recipe's own ``train`` and never reports
progress. ``python -m benchmarks fairness`` takes about six minutes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.latency import CLASSES, FEATURES, REST_SECONDS, wait
from benchmarks.release import RECIPE
from service.infra.db import Database
from tests.harness import servers, stack

POSTS, WARM_UP = 100, 3
BUSY = """
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


def rows(seconds: float = 600.0) -> Iterator[dict[str, Any]]:
    """Yield the p99 and the median beside a busy worker. ``seconds``: how long the training lasts at most."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        home = Path(folder)
        people = 2 * (POSTS + WARM_UP) + 10
        (home / "recipe.py").write_text(RECIPE.format(people=people, features=FEATURES, classes=CLASSES))
        (home / "busy.py").write_text(BUSY.format(seconds=seconds))
        broker = running.enter_context(servers.redis_server()).url
        service = running.enter_context(stack.running(home / "home", home, BROKER_URL=broker))
        service.start("updater")
        service.live("recipe", threshold=1e9, utility_tolerance=None)
        database = service.database()
        idle = _waits(service, database, first=0, version=2)
        busy = service.register("busy", method="retrain")
        path = f"/v1/models/{busy}/preparation"
        service.eventually(lambda: service.client.get(path), lambda state: str(state["phase"]).startswith("train"))
        beside = _waits(service, database, first=len(idle), version=2 + len(idle))
        if service.client.get(path)["status"] != "preparing":
            raise RuntimeError(f"The training ended before the {POSTS} deletions did: give it more seconds.")
        database.close()
    idle, beside = idle[WARM_UP:], beside[WARM_UP:]
    sides = {"idle": idle, "busy": beside}
    limit = 2 * _p99(idle) + 1.0
    p99, ratio = _p99(beside), median(beside) / median(idle)
    name = "POST to version beside a training that never yields"
    yield {"name": f"{name}: p99", "value": p99, "target": limit, "unit": "s", "met": p99 <= limit, "sides": sides}
    yield {
        "name": f"{name}: median / idle",
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
