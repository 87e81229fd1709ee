"""A registration in shards, and deletions from several models, with 1, 2 and 4 worker processes.

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
from benchmarks.crowd import NETWORK, write_crowd
from tests.harness import servers
from tests.harness.process import ANY_DISTANCE
from tests.harness.stack import Stack, running

COUNTS = (1, 2, 4)
MODELS, REQUESTS = 4, 40
SHARD_EPOCHS = 2000
"""a training of several seconds; of 100 passes, half a second, two workers took .9 of one's time (27 November 2026)"""
SIZES = (("sharded", 2000, 200, SHARD_EPOCHS), ("small", 60, 20, 2))
"""each recipe, its people and features, and the passes of its training"""
PATIENCE_SECONDS = 1800.0
"""a busy machine may take its time: it is measured, not judged"""
ANY_ACCURACY = {"max_accuracy_drop": None}
"""of eight holdout samples with random labels one more or less means nothing, and would wait for a person"""


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
        yield {
            "name": f"{REQUESTS} deletions: 1 worker / {count} workers on {cores} cores",
            "value": found[1]["release"] / found[count]["release"],
            "target": "reported",
            "unit": "x wall",
            "met": None,
            "sides": {"one": found[1], "these": found[count], "cores": cores, "load": os.getloadavg()[0]},
        }


def measured(count: int) -> dict[str, float]:
    """Seconds of the registration in ``shards``, and of ``release`` (all requests for all models)."""
    with tempfile.TemporaryDirectory() as folder, servers.postgres() as postgres, servers.redis_server() as redis:
        recipes = Path(folder) / "recipes"
        recipes.mkdir()
        for name, people, features, epochs in SIZES:
            model = NETWORK.format(features=features, hidden=16)
            training = f"epochs={epochs}, learning_rate=0.02"
            write_crowd(recipes, name, people=people, features=features, model=model, training=training)
        with postgres.database() as url:
            settings = {"DATABASE_URL": url, "BROKER_URL": redis.url}
            with running(Path(folder) / "home", recipes, limits=ANY_DISTANCE, **settings) as stack:
                stack.more_workers(count - 1)
                for _ in range(count):
                    stack.live("small", **ANY_ACCURACY)  # every worker has loaded torch
                return {**shards(stack), **release(stack)}


def shards(stack: Stack) -> dict[str, float]:
    """Seconds of the registration of a model in five shards."""
    start = time.perf_counter()
    stack.live("sharded", method="shards", options={"shards": 5}, **ANY_ACCURACY)
    return {"shards": time.perf_counter() - start}


def release(stack: Stack) -> dict[str, float]:
    names = [stack.live("small", **ANY_ACCURACY) for _ in range(MODELS)]
    start = time.perf_counter()
    asked = [stack.delete(*names, subject_id=f"p{number}") for number in range(REQUESTS)]
    for request in asked:
        if stack.ended(request)["status"] != "completed":
            raise RuntimeError("a deletion did not complete")
    return {"release": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    for row in rows():
        print(json.dumps(row) if arguments.json else f"{row['value']:.2f} {row['unit']} {row['name']}", flush=True)


if __name__ == "__main__":
    main()
