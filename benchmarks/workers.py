"""One preparation in work units, one in shards, deletions from several models, with 1, 2 and 4 worker processes.

``python -m benchmarks.workers`` (``--json``: one row a line). PostgreSQL and Redis are those of the tests; every
process is a real one with one computing thread. Seconds are wall-clock, because waiting is the question; ``cpu`` beside
them is what all workers computed meanwhile. More workers than cores cannot compute faster: on a machine of two cores
the step from 1 to 2 shows the gain, and the step from 2 to 4 shows the price of sharing, not what four cores would do.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tests.harness.stack
from tests.harness import servers
from tests.harness.process import ANY_DISTANCE
from tests.harness.stack import Stack, running

COUNTS = (1, 2, 4)
MODELS, PEOPLE, REQUESTS = 4, 512, 40
SHARD_EPOCHS = 2000
"""a training of several seconds; of 100 passes, half a second, two workers took .9 of one's time (27 November 2026)"""
PATIENCE_SECONDS = 1800.0
"""a busy machine may take its time: it is measured, not judged"""
ANY_ACCURACY = {"max_accuracy_drop": None}
"""of eight holdout samples with random labels one more or less means nothing, and would wait for a person"""
RECIPE = """
import torch
import unlearning as ul

def recipe():
    random = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn({people}, {features}, generator=random), torch.arange({people}) % 10
    names = [f"p{{index}}" for index in range({people})]
    return ul.Recipe(
        model=lambda: torch.nn.Sequential(torch.nn.Linear({features}, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)),
        samples=ul.Samples(ids=names, subjects=names, inputs=inputs, targets=targets),
        holdout=(inputs[:8], targets[:8]),
        loss="cross_entropy",
        training=ul.Training(epochs={epochs}, learning_rate=0.02),
    )
"""


def rows() -> Iterator[dict[str, Any]]:
    tests.harness.stack.PATIENCE_SECONDS = PATIENCE_SECONDS
    found = {count: measured(count) for count in COUNTS}
    cores = len(os.sched_getaffinity(0))
    for count in COUNTS[1:]:
        share = found[count]["shards"] / found[1]["shards"]
        yield {
            "name": f"five shards: {count} workers / 1 worker on {cores} cores",
            "value": share,
            "target": "reported" if count > cores else 0.65,
            "unit": "x wall",
            "met": None if count > cores else share <= 0.65,
            "sides": {"one": found[1], "these": found[count], "cores": cores, "load": os.getloadavg()[0]},
        }
        for what, name in (("preparation", "a preparation in 8 work units"), ("release", f"{REQUESTS} deletions")):
            yield {
                "name": f"{name}: 1 worker / {count} workers on {cores} cores",
                "value": found[1][what] / found[count][what],
                "target": "reported",
                "unit": "x wall",
                "met": None,
                "sides": {"one": found[1], "these": found[count], "cores": cores, "load": os.getloadavg()[0]},
            }


def measured(count: int) -> dict[str, float]:
    """Seconds of one large ``preparation``, and of ``update`` (all requests for all models); ``cpu`` of each."""
    with tempfile.TemporaryDirectory() as folder, servers.postgres() as postgres, servers.redis_server() as redis:
        recipes = Path(folder) / "recipes"
        recipes.mkdir()
        (recipes / "large.py").write_text(RECIPE.format(people=PEOPLE, features=200, epochs=15))
        (recipes / "sharded.py").write_text(RECIPE.format(people=2000, features=200, epochs=SHARD_EPOCHS))
        (recipes / "small.py").write_text(RECIPE.format(people=60, features=20, epochs=2))
        with postgres.database() as url:
            settings = {"DATABASE_URL": url, "BROKER_URL": redis.url}
            with running(Path(folder) / "home", recipes, limits=ANY_DISTANCE, **settings) as stack:
                stack.more_workers(count - 1)
                for _ in range(count):
                    stack.live("small", **ANY_ACCURACY)  # every worker has loaded torch
                return {**preparation(stack), **shards(stack), **release(stack)}


def preparation(stack: Stack) -> dict[str, float]:
    before, start = cpu(stack), time.perf_counter()
    stack.live("large", **ANY_ACCURACY)
    return {"preparation": time.perf_counter() - start, "preparation_cpu": cpu(stack) - before}


def shards(stack: Stack) -> dict[str, float]:
    """Seconds of the registration of a model in five shards."""
    before, start = cpu(stack), time.perf_counter()
    stack.live("sharded", method="shards", options={"shards": 5, "slices": 2}, **ANY_ACCURACY)
    return {"shards": time.perf_counter() - start, "shards_cpu": cpu(stack) - before}


def release(stack: Stack) -> dict[str, float]:
    names = [stack.live("small", **ANY_ACCURACY) for _ in range(MODELS)]
    before, start = cpu(stack), time.perf_counter()
    asked = [stack.delete(*names, subject_id=f"p{number}") for number in range(REQUESTS)]
    for request in asked:
        if stack.ended(request)["status"] != "completed":
            raise RuntimeError("a deletion did not complete")
    return {"release": time.perf_counter() - start, "release_cpu": cpu(stack) - before}


def cpu(stack: Stack) -> float:
    """Seconds that all workers together have computed."""
    ticks = 0
    for name, child in stack.processes.items():
        if name.startswith("worker") and child.process is not None:
            fields = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    for row in rows():
        print(json.dumps(row) if arguments.json else f"{row['value']:.2f} {row['unit']} {row['name']}", flush=True)


if __name__ == "__main__":
    main()
