"""A recipe with rows for the service to carry out, its table of people whose numbers are drawn, and what that costs."""

from __future__ import annotations

import os
import runpy
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from expunge_workers.runtime.worlds import template
from unlearning.recipe import Recipe
from unlearning.rows import call_recipe

RECIPE = """
import torch
import unlearning as ul

def recipe(rows: ul.Rows = ul.table("{name}.parquet", person="person", id="id")) -> ul.Recipe:
    strangers = torch.randn(100, {features}, generator=torch.Generator().manual_seed(1))
    return ul.Recipe(
        model=lambda: {model},
        samples=rows.samples(rows["x"], rows["y"], at=rows["__row"]),
        holdout=(strangers, torch.arange(100) % {classes}),
        loss="{loss}",
        training=ul.Training({training}),
    )
"""
ONE_PASS = "epochs=1, learning_rate=0.01, weight_decay=0.01"
CONVERGED = "epochs=0, weight_decay=0.01, converge=1e-8"
NETWORK = "torch.nn.Sequential(torch.nn.Linear({features}, {hidden}), torch.nn.Tanh(), torch.nn.Linear({hidden}, 10))"


def write_crowd(
    folder: Path,
    name: str = "recipe",
    *,
    people: int,
    features: int,
    each: int = 1,
    classes: int = 10,
    model: str | None = None,
    loss: str = "cross_entropy",
    training: str = ONE_PASS,
    named: Callable[[int], str] = "p{}".format,
) -> None:
    """Write the recipe ``name`` and its table.

    Args:
        each: samples of one person. named: a person's id by its number.
        model: code that builds it; None: a linear layer with as many outputs as there are classes.
        training: the settings, as code.
    """
    draw = np.random.default_rng(0)
    count = people * each
    x = draw.standard_normal((count, features), dtype=np.float32)
    scores = x @ (draw.standard_normal((features, classes), dtype=np.float32) / np.float32(features**0.5))
    y = (scores + 0.5 * draw.standard_normal((count, classes))).argmax(axis=1)
    ids = [named(person) for person in range(people)]
    columns = {
        "id": [f"{ids[row // each]}:{row}" for row in range(count)],
        "person": [ids[row // each] for row in range(count)],
        "x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), features),
        "y": y,
    }
    parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    model = model or f"torch.nn.Linear({features}, {classes}, bias=False)"
    facts = {"name": name, "features": features, "classes": classes, "model": model, "loss": loss}
    (folder / f"{name}.py").write_text(RECIPE.format(**facts, training=training))


def called(folder: Path, name: str = "recipe") -> Recipe:
    """Return what a recipe of this folder is, called in this process on the rows of everybody."""
    recipe: Recipe = call_recipe(runpy.run_path(str(folder / f"{name}.py"))["recipe"], lambda _: folder)
    return recipe


def one_thread() -> None:
    """Compute on one thread, here and in the worlds that this process makes from now on.

    On a busy machine several wait for each other by spinning, and that counts as CPU time.
    """
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def cpu(task: Callable[[], object]) -> float:
    """Return the CPU seconds of a task, here and in the readers and worlds that this process's template forks for it.

    Where a worker runs in this process, they are what it costs.
    """
    before = _used()
    task()
    return _used() - before


def _used() -> float:
    with template().line({"kind": "nothing"}):  # the template waits for readers that ended
        pass
    time.sleep(0.05)
    fields = Path(f"/proc/{template().process.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
