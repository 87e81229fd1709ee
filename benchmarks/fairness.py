"""A deletion beside an idle worker, and beside one that is busy for minutes with another model.

API, worker, updater and scheduler run as processes of their own over SQLite and Redis. Deletions are posted one after
another beside an idle worker, and then while the worker waits for a recipe that trains for ten minutes.
``python -m benchmarks fairness``; ``BENCH_POSTS``: deletions a side (100).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.crowd import write_crowd
from benchmarks.latency import CLASSES, FEATURES, REST_SECONDS, wait
from expunge_service.infra.db import Database
from tests.harness import servers, stack
from tests.harness.process import ANY_DISTANCE

POSTS, WARM_UP = int(os.environ.get("BENCH_POSTS", "100")), 3
TEN_MINUTES = """
import time
import unlearning as ul

def recipe(rows: ul.Rows = ul.table("busy.parquet", person="person")) -> ul.Published:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        sum(range(100_000))
    return ul.Published({"model.json": "{}"})
"""


def rows() -> Iterator[dict[str, Any]]:
    """Yield the p99 and the median beside a busy worker."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        home = Path(folder)
        people = 2 * (POSTS + WARM_UP) + 10
        write_crowd(home, people=people, features=FEATURES, classes=CLASSES)
        write_crowd(home, "busy", people=20, features=4, named="q{}".format)
        (home / "busy.py").write_text(TEN_MINUTES)
        broker = running.enter_context(servers.redis_server()).url
        service = running.enter_context(stack.running(home / "home", home, limits=ANY_DISTANCE, BROKER_URL=broker))
        service.start("updater")
        service.live("recipe", max_accuracy_drop=None)
        database = service.database()
        idle = _waits(service, database, first=0, version=2)
        busy = service.register("busy", method="retrain")
        path = f"/v1/models/{busy}"
        service.eventually(lambda: service.client.get(path)["preparation"], _trains)
        beside = _waits(service, database, first=len(idle), version=2 + len(idle))
        if service.client.get(path)["status"] != "preparing":
            raise RuntimeError(f"The other model was ready before the {POSTS} deletions were: give it more to do.")
        database.close()
    idle, beside = idle[WARM_UP:], beside[WARM_UP:]
    sides = {"idle": idle, "busy": beside}
    limit = 2 * _p99(idle) + 1.0
    p99, ratio = _p99(beside), median(beside) / median(idle)
    label = "POST to version beside a training that never yields"
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


def _trains(preparation: Mapping[str, Any]) -> bool:
    return str(preparation["phase"]).startswith("train")


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[round(0.99 * (len(seconds) - 1))]


if __name__ == "__main__":
    for each in rows():
        print(each, flush=True)
