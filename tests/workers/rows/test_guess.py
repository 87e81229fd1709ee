"""A reader who knows everybody else's rows learns nothing of the person from a version after the deletion."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.workers.rows.data import EVERYBODY, forget, lay_out, published
from tests.workers.worlds import World
from unlearning.rows import open_rows, table

MODELS = 20
MINIBATCHES = """
import io

import numpy as np
import unlearning as ul

SEED = {seed}


def recipe(rows: ul.Rows = ul.table("people.csv", person="person")):
    x, y = rows.numpy("x"), rows.numpy("y")
    x = (x - x.mean()) / x.std()
    draw, slope, level = np.random.default_rng(SEED), 0.0, 0.0
    for _ in range(3):
        for batch in np.array_split(draw.permutation(len(x)), 8):
            error = slope * x[batch] + level - y[batch]
            slope, level = slope - 0.1 * (error * x[batch]).mean(), level - 0.1 * error.mean()
    file = io.BytesIO()
    np.save(file, np.array([slope, level]))
    return ul.Published({{"model.npy": file.getvalue()}})
"""


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, MODELS), marks=pytest.mark.drill)], ids=["one", "twenty"])
def test_who_knows_the_others_can_compute_the_version_and_so_learns_nothing(
    world: World, folder: Path, seed: int | range
) -> None:
    """The reader trains on everybody else's rows, by hand, and holds the very bytes that are published.

    Whoever holds a function of the others' rows alone guesses as well without the version: one time in two.
    """
    for number in [seed] if isinstance(seed, int) else seed:
        lay_out(folder, recipe=MINIBATCHES.format(seed=number))
        own = world.configured(recipes=folder)
        model = own.live("rows", "retrain", name=f"m{number}")
        before = published(own, model)
        person = EVERYBODY[number]
        forget(own, model, person)
        recipe = runpy.run_path(str(folder / "rows.py"))["recipe"]
        others = open_rows(table("people.csv", person="person"), folder, without=frozenset({f"p{person}"}))
        assert published(own, model) == bytes(recipe(others)) != before
