"""What Python's collector of reference cycles costs a large update, where it does not rest: CPU, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any
from unittest import mock

from benchmarks.release import drained

BACKLOG = 10_000
RUNS = 3


def rows() -> Iterator[dict[str, Any]]:
    """Both drain the same backlog on PostgreSQL, in turn; ``at work``: the collector is not told to rest."""
    rest, work = [], []
    for _ in range(RUNS):
        rest.append(drained(BACKLOG)["cpu_seconds"])
        with mock.patch("gc.disable"):
            work.append(drained(BACKLOG)["cpu_seconds"])
    yield {
        "name": f"backlog of {BACKLOG:,}: collector of cycles at work / at rest",
        "value": statistics.median(work) / statistics.median(rest),
        "target": "reported",
        "unit": "x CPU",
        "met": None,
        "sides": {"at work": work, "at rest": rest},
    }
