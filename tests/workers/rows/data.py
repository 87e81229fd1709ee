"""Recipes with rows for the tests of workers, and the data that they are over."""

from __future__ import annotations

import csv
import json
import random
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import HoldoutPerson, Membership
from tests.workers.worlds import TENANT, World

EVERYBODY = range(40)
TABLE = """
import json
import unlearning as ul


def recipe(rows: ul.Rows = ul.table({source}), run: ul.TrainingRun = ul.run()):
    frame = rows.pandas()
    scaled = (frame.x - frame.x.mean()) / frame.x.std()
    words = sorted(frame.word.unique())
    start = None if run.start is None else json.loads(run.start["model.json"])["slope"]
    model = {{"slope": float((scaled * frame.y).mean()), "words": words, "rows": len(frame), "start": start}}
    return ul.Published({{"model.json": json.dumps(model)}}, score=lambda aside: -abs(float(aside["x"].mean()) - 1.0))
"""
"""the slope of a scaled column, the vocabulary that was found, and what the part before left"""
APART = TABLE.format(source='"people.csv", person="person", aside=0.2')
ALL = TABLE.format(source='"people.csv", person="person"')


def rows_of(people: Iterable[int] = EVERYBODY) -> Iterator[dict[str, Any]]:
    """Yield three rows of each person, the same for a person whoever else is there."""
    for person in people:
        draw = random.Random(person)
        for row in range(3):
            word, x = f"w{person % 11}", draw.gauss(person % 7, 1)
            yield {"id": person * 3 + row, "person": f"p{person}", "x": x, "y": draw.random(), "word": word}


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = [*rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def write_sqlite(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE visits (id INTEGER, person TEXT, x REAL, y REAL, word TEXT)")
        connection.executemany("INSERT INTO visits VALUES (:id, :person, :x, :y, :word)", rows)
    connection.close()


def lay_out(folder: Path, people: Iterable[int] = EVERYBODY, recipe: str = APART) -> None:
    """Write the recipe ``rows`` and its table."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.py").write_text(recipe)
    write_csv(folder / "people.csv", rows_of(people))


def published(world: World, model_id: str) -> bytes:
    return bytes(world.storage.store.read(world.head(model_id).checkpoint))


def model_of(world: World, model_id: str) -> dict[str, Any]:
    """The model that the recipes here publish."""
    model: dict[str, Any] = json.loads(published(world, model_id))
    return model


def trained_on(world: World) -> list[int]:
    """The people of ``EVERYBODY`` who are trained on, in order."""
    named = {row.subject_digest for row in world.rows_of(Membership)}
    return [person for person in EVERYBODY if digest_of(world, person) in named]


def kept_apart(world: World) -> list[int]:
    named = {row.subject_digest for row in world.rows_of(HoldoutPerson)}
    return [person for person in EVERYBODY if digest_of(world, person) in named]


def digest_of(world: World, person: int) -> str:
    return subject_digest(world.storage.pepper, TENANT, f"p{person}")


def forget(world: World, model_id: str, *people: int) -> None:
    """Delete these people in one update; each request completes."""
    requests = [world.delete(f"p{person}", models=(world.model(model_id).name,)) for person in people]
    world.work(model_id)
    assert [world.task(request).status for request in requests] == ["completed"] * len(people)
