"""A deletion under ``proved`` over HTTP, beside a cold scikit-learn fit that also reads the table (``cold_fit.py``).

``python -m benchmarks over_http``. Expunge runs by ``expunge up`` over PostgreSQL and Redis with ``fsync`` on. The CPU
seconds of all its processes and servers count, from the POST until ``SETTLE_SECONDS`` after the completion, with the
certificate. Both sides compute on one thread, and take turns.

``warm``: Expunge has just carried out another deletion; the other side's process has its libraries. ``fresh``: Expunge
has rested until its workers have given up the process that they train from; the other side is a process that starts.

Sizes: ``BENCH_SAMPLES`` (100000, five of each person), ``BENCH_WARM`` (7) and ``BENCH_FRESH`` (2) deletions.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.beside_peer import ONE_THREAD, REST_SECONDS, SETTLE_SECONDS, Watched, expunge, ground, one_by_one, size
from benchmarks.cold_fit import fit_without
from benchmarks.crowd import CONVERGED, write_crowd
from benchmarks.posting import ROOT

SAMPLES, EACH = size("SAMPLES", 100_000), 5
WARM, FRESH = size("WARM", 7), size("FRESH", 2)
TARGETS = {"warm": "<= 1", "fresh": "<= 2"}
MODEL = {
    "name": "head",
    "recipe": "recipe",
    "method": "newton",
    "guarantee": "proved",
    "max_distance": 1e-5,
    "max_accuracy_drop": None,
}


def rows() -> Iterator[dict[str, Any]]:
    with ground(write=write_head) as at, expunge(at, MODEL) as side, side.watched() as watched:
        table, leavers = at.folder / "recipe.parquet", (f"p{person}" for person in count())
        turn(watched, next(leavers), partial(fit_here, table))  # loads the libraries of both
        warm = [turn(watched, next(leavers), partial(fit_here, table)) for _ in range(WARM)]
        fresh = []
        for _ in range(FRESH):
            time.sleep(REST_SECONDS)
            fresh.append(turn(watched, next(leavers), partial(fit_in_a_process, table)))
    for name, turns in (("warm", warm), ("fresh", fresh)):
        yield {
            "name": f"a proved deletion over HTTP, n = {SAMPLES:,}, {name}: Expunge / a cold fit that reads the table",
            "value": median(ours / theirs for ours, theirs in turns),
            "target": TARGETS[name],
            "unit": "CPU ratio",
            "sides": {"expunge": [ours for ours, _ in turns], "fit": [theirs for _, theirs in turns]},
        }


def write_head(folder: Path) -> None:
    write_crowd(folder, people=SAMPLES // EACH, each=EACH, features=20, classes=5, training=CONVERGED)


def turn(watched: Watched, person: str, fit: Callable[[str], float]) -> tuple[float, float]:
    """Delete a person, and fit without them; return the CPU seconds of both."""
    before = watched.side.cpu_seconds()
    one_by_one(watched, [person])
    time.sleep(SETTLE_SECONDS)
    return watched.side.cpu_seconds() - before, fit(person)


def fit_here(table: Path, person: str) -> float:
    start = time.process_time()
    with threadpool_limits(1):
        fit_without(table, person)
    return time.process_time() - start


def fit_in_a_process(table: Path, person: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "benchmarks.cold_fit", str(table), person]
    subprocess.run(command, env=os.environ | ONE_THREAD, cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    for measured_row in rows():
        print(json.dumps(measured_row), flush=True)
