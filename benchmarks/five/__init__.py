"""The five papers in one table: ``python -m benchmarks five``.

Each method as its paper has it and as it is served, beside doing nothing, a retraining and plain gradient ascent, on
the same data and the same people. ``BENCH_FIVE=digits`` (or ``digits/network``, ``mnist`` or ``adult``; several with
commas) measures a part. Each setting's table goes to ``build/reports/five.json`` after each seed, and says how many
seeds ran; ``python -m benchmarks.five.page`` publishes that file and makes ``docs/five.md`` and its picture from it.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.five import results
from benchmarks.five.settings import SETTINGS, Setting
from benchmarks.five.table import measured

SEEDS = (0, 1, 2, 3, 4)
SHARES = (0.01, 0.10)


def rows() -> Iterator[dict[str, Any]]:
    """Measure the chosen settings; yield the distance left of each row of the table, with its other figures beside."""
    torch.set_num_threads(1)
    chosen = [name for name in os.environ.get("BENCH_FIVE", "").split(",") if name]
    for setting in SETTINGS:
        if not chosen or {setting.data, f"{setting.data}/{setting.model}"} & set(chosen):
            yield from _rows_of(setting)


def _rows_of(setting: Setting) -> Iterator[dict[str, Any]]:
    try:
        recipe = setting.recipe()
    except FileNotFoundError as error:
        yield _row(f"five, {setting.data}, {setting.model}", None, {"not_run": f"unverified here: {error}"})
        return
    table: dict[str, Any] = {}
    for table in measured(setting, recipe, SHARES, SEEDS):
        results.keep(table)
    for case in table["cases"]:
        for row in case["rows"]:
            name = f"five, {setting.data}, {setting.model}, {case['share']:.0%} {case['manner']}: {row['name']}"
            if row["refused"]:
                yield _row(name, None, {"refused": row["refused"]})
            else:
                yield _row(name, statistics.mean(row["figures"]["distance left"]), row["figures"])


def _row(name: str, value: float | None, sides: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "value": value, "target": None, "unit": "of the distance", "met": None, "sides": sides}
