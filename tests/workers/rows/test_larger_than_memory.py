"""Rows that a worker does not hold in memory: their arrays are sealed on a disk, and every model is the same bytes.

3 GB under a limit of 1 GB: ``tests/stories/test_larger_than_memory.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from expunge_workers.runtime.rows_recipe import SPOOL
from tests.workers.rows.data import EVERYBODY, forget, published, trained_on, write_csv
from tests.workers.worlds import World

RECIPE = """
import torch
import unlearning as ul
from safetensors.torch import save


def recipe(rows: ul.Rows = ul.arrays(names="people.csv", person="person", aside=0.2, x="x.npy", y="y.npy")):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(300, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for batch in rows.batches(16, seed=epoch):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch.tensor("x")).squeeze(1), batch.tensor("y")).backward()
            optimizer.step()
    return ul.Published(
        {"weights.safetensors": save(model.state_dict())},
        score=lambda aside: -sum(error(model, some) for some in aside.blocks(8)),
    )


def error(model, rows):
    return float((model(rows.tensor("x")).squeeze(1) - rows.tensor("y")).square().sum())
"""
WHOLE = RECIPE.replace("for batch in rows.batches(16, seed=epoch):", "for batch in [rows]:")
"""reads everything at once"""
SPLIT = RECIPE.replace("    torch.manual_seed(1)\n", "    rows, early = rows.split(0.2)\n    torch.manual_seed(1)\n")
ENTRIES = 3
COLUMNS_BYTES = 20_000
"""more than the columns take, and less than the arrays"""


def lay_out_arrays(folder: Path, people: Iterable[int] = EVERYBODY, recipe: str = RECIPE) -> None:
    """Write the recipe ``rows``, three rows of 1.2 KB for each person, and their index."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.py").write_text(recipe)
    draws = [np.random.default_rng(person).standard_normal((ENTRIES, 301), dtype=np.float32) for person in people]
    entries = np.concatenate(draws)
    np.save(folder / "x.npy", entries[:, :300])
    np.save(folder / "y.npy", entries[:, 300])
    write_csv(folder / "people.csv", ({"person": f"p{person}"} for person in people for _ in range(ENTRIES)))


@pytest.mark.parametrize("recipe", [RECIPE, SPLIT], ids=["all", "split"])
def test_what_is_read_from_a_disk_is_what_is_read_from_memory(world: World, folder: Path, recipe: str) -> None:
    lay_out_arrays(folder, recipe=recipe)
    in_memory = world.configured(recipes=folder)
    world = world.configured(recipes=folder, sample_bytes=COLUMNS_BYTES)
    held, twin = world.live("rows", "retrain", name="held"), in_memory.live("rows", "retrain", name="twin")
    assert [*(world.settings.home / SPOOL).iterdir()] == [], "no file has a name"
    before = published(world, held)
    assert before == published(world, twin)
    leave = trained_on(world)[:2]
    forget(world, held, *leave)
    lay_out_arrays(folder, [person for person in EVERYBODY if person not in leave], recipe)
    assert before != published(world, held)
    assert published(world, held) == published(world, world.live("rows", "retrain", name="never"))


def test_what_takes_all_at_once_is_refused_with_the_way_on(world: World, folder: Path) -> None:
    lay_out_arrays(folder, recipe=WHOLE)
    world = world.configured(recipes=folder, sample_bytes=COLUMNS_BYTES)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    reason = str(world.model(model_id).reason)
    assert world.model(model_id).status == "refused"
    assert "entries take" in reason and "rows.batches(256, seed=0)" in reason, reason


def test_a_folder_that_cannot_be_written_is_named(world: World, folder: Path) -> None:
    lay_out_arrays(folder)
    world = world.configured(recipes=folder, sample_bytes=COLUMNS_BYTES)
    (world.settings.home / SPOOL).write_text("a file is in the way")
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    assert f"{world.settings.home / SPOOL} cannot be written" in str(world.model(model_id).reason)
