"""What a long history costs on SQLite: an intake, an update, a tick of the scheduler, a scrape.

``python -m benchmarks history``. CPU seconds after 1,000 and after 1,000,000 finished requests, which
are written by plain SQL; the median of several. ``BENCH_FINISHED`` names other numbers.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.crowd import cpu
from benchmarks.release import delete, live, worker
from expunge.service.api.traffic import Traffic
from expunge.service.api.views.metrics import render
from expunge.workers.scheduler.run import open_scheduler
from tests.harness.history import fill
from tests.workers.worlds import World

FINISHED = tuple(int(each) for each in os.environ.get("BENCH_FINISHED", "1000,1000000").split(","))
TIMES = 9


def rows() -> Iterator[dict[str, Any]]:
    short, long = (costs(count) for count in FINISHED)
    for question, cost in long.items():
        sides = {str(FINISHED[0]): short[question], str(FINISHED[1]): cost}
        yield {
            "name": f"{question} after {FINISHED[1]:,} finished requests / after {FINISHED[0]:,}, SQLite",
            "value": statistics.median(cost) / statistics.median(short[question]),
            "target": "<= 1.2",
            "unit": "CPU ratio",
            "sides": sides,
        }


def costs(finished: int) -> dict[str, list[float]]:
    """CPU seconds of each question, asked ``TIMES`` times in turn."""
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=40, features=50, classes=4)
        database, busy, scheduler = process.storage.database, worker(process), open_scheduler(process.settings)
        scheduler.tick(1)
        fill(database, process.storage.guard.witness, finished)
        World(process).commit_anew(model_id, drafted_as=1)
        found: dict[str, list[float]] = {}
        for person in range(TIMES + 1):
            subject = f"p{person}"
            asked: dict[str, Callable[[], object]] = {
                "an intake": lambda subject=subject: delete(process, subject),  # type: ignore[misc]
                "an update": lambda: busy.work(model_id),
                "a tick": lambda: scheduler.tick(1),
                "a scrape": lambda: render(database, process.settings, Traffic(), differs=False),
            }
            for question, ask in asked.items():
                seconds = cpu(ask) if question == "an update" else own_cpu(ask)
                if person:  # the first one of each is not counted
                    found.setdefault(question, []).append(seconds)
        process.storage.close()
        scheduler.database.close()
    return found


def own_cpu(ask: Callable[[], object]) -> float:
    """Return the CPU seconds of this process alone: nothing else computes for it, and they are too few for ``cpu``."""
    start = time.process_time()
    ask()
    return time.process_time() - start
