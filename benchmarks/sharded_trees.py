"""Trees of LightGBM in four shards: what a deletion costs, and the first version.

``python -m benchmarks sharded_trees``. CPU seconds on one thread, of the worker, which is this process, and of the
reader and the worlds that it asks. 20,000 rows of 2,000 people; a shard has 5,000, and its fit here, side by side, is
``fit``. A deletion trains one shard again. Claim, publication and bookkeeping are in it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from pyarrow import parquet

from benchmarks.crowd import cpu, one_thread
from benchmarks.people_table import EACH, FEATURES, write_people
from benchmarks.release import another, delete, opened, worker

PEOPLE, SHARDS, ROUNDS = 2000, 4, int(os.environ.get("BENCH_ROUNDS", "115"))
DELETIONS = 7
SETTINGS = {"objective": "binary", "num_threads": 1, "seed": 1, "deterministic": True, "force_row_wise": True}
RECIPE = f"""
import lightgbm

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.parquet", person="person")) -> ul.Published:
    samples = lightgbm.Dataset(rows.numpy(*(f"x{{number}}" for number in range({FEATURES}))), rows["y"])
    booster = lightgbm.train({SETTINGS | {"verbose": -1}}, samples, {ROUNDS})
    return ul.Published({{"model.txt": booster.model_to_string()}})
"""


def rows() -> Iterator[dict[str, Any]]:
    one_thread()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_people(folder, PEOPLE)
        (folder / "recipe.py").write_text(RECIPE)
        process, fit = opened(folder), partial(fit_of_a_shard, folder)
        model_ids: list[str] = []
        policy = {"method": "shards", "options": {"shards": SHARDS}, "max_accuracy_drop": None}
        first = cpu(lambda: model_ids.append(another(process, "trees", policy)))
        busy, taken, fits = worker(process), list[float](), list[float]()
        for person in range(DELETIONS + 1):
            delete(process, f"p{person}")
            seconds = cpu(partial(busy.work, model_ids[0])), cpu(fit)
            if person:  # the first one of each is not counted
                taken.append(seconds[0])
                fits.append(seconds[1])
        process.storage.close()
    shown = f"LightGBM, {SHARDS} shards"
    update, share = statistics.median(taken), statistics.median(taken) / statistics.median(fits)
    yield figure(f"{shown}: a deletion", update, "<= 0.9", "CPU s", update=taken)
    yield figure(f"{shown}: a deletion / a shard's fit", share, "reported", "CPU ratio", update=taken, fit=fits)
    yield figure(f"{shown}: the first version", first, "<= 8", "CPU s", first=[first])


def figure(name: str, value: float, target: str, unit: str, **sides: list[float]) -> dict[str, Any]:
    return {"name": name, "value": value, "target": target, "unit": unit, "sides": sides}


def fit_of_a_shard(folder: Path) -> None:
    table = parquet.read_table(folder / "people.parquet").slice(0, PEOPLE * EACH // SHARDS)
    features = np.stack([table.column(f"x{number}").to_numpy() for number in range(FEATURES)], axis=1)
    lightgbm.train(SETTINGS | {"verbose": -1}, lightgbm.Dataset(features, table.column("y").to_numpy()), ROUNDS)
