"""Recipes with rows: registered, forgotten from, and equal to a registration that never held the person."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from expunge.service.infra.pseudonyms import subject_digest
from expunge.service.infra.tables import Membership
from tests.workers.worlds import TENANT, World

RECIPE = '''
"""The mean of a column, and of those who are early."""
import json
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2), run: ul.TrainingRun = ul.run()):
    frame = rows.pandas()
    scaled = (frame.x - frame.x.mean()) / frame.x.std()
    words = sorted(frame.word.unique())
    start = None if run.start is None else json.loads(run.start["model.json"])["slope"]
    model = {"slope": float((scaled * frame.y).mean()), "words": words, "rows": len(frame), "start": start}
    return ul.Published({"model.json": json.dumps(model)}, score=lambda aside: -abs(float(aside["x"].mean()) - 1.0))
'''


def write(folder: Path, people: Iterable[int], recipe: str = RECIPE) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "rows.py").write_text(recipe)
    draw = random.Random(5)
    rows = [
        {"person": f"p{person}", "x": draw.gauss(person % 7, 1), "y": draw.random(), "word": f"w{person % 11}"}
        for person in range(40)
        for _ in range(3)
    ]
    with (folder / "people.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["person", "x", "y", "word"])
        writer.writeheader()
        writer.writerows(row for row in rows if int(row["person"][1:]) in set(people))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recipes"


def published(world: World, model_id: str) -> bytes:
    return bytes(world.storage.store.read(world.head(model_id).checkpoint))


def is_trained_on(world: World, model_id: str, person: str) -> bool:
    named = subject_digest(world.storage.pepper, TENANT, person)
    return any(row.subject_digest == named for row in world.rows_of(Membership))


@pytest.mark.parametrize("method", ["retrain", "shards", "late"])
def test_a_version_is_what_a_registration_that_never_held_the_person_publishes(
    world: World, folder: Path, method: str
) -> None:
    everybody = range(40)
    write(folder, everybody)
    world = world.configured(recipes=folder)
    model = world.live("rows", method, name="held", guarantee="exact")
    leaving = next(person for person in everybody if is_trained_on(world, model, f"p{person}"))
    before = published(world, model)
    request = world.delete(f"p{leaving}")
    world.work(model)
    assert world.task(request).status == "completed"
    after = published(world, model)
    assert after != before

    write(folder, [person for person in everybody if person != leaving])
    never = world.live("rows", method, name="never", guarantee="exact")
    assert published(world, never) == after
    claim = world.head(model).claim
    assert claim["guarantee"] == "exact"
