"""Functions of one person's rows: made in worlds of these alone, once, and gone with the person."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from expunge.service.infra.pseudonyms import subject_digest
from expunge.service.infra.tables import Membership, TrainedPart
from expunge.workers.runtime import mapping, worlds
from tests.workers.worlds import TENANT, World

PEOPLE = range(24)
RECIPE = '''
"""The mean of what is dear of each row."""
import json
import os
from pathlib import Path

import numpy as np

import unlearning as ul

seen = []


def embed(block: ul.Rows) -> np.ndarray:
    """The row and the mean of its person; what an earlier block left would be a third number."""
    left = len(seen) + len(os.listdir("/tmp")) + len(os.listdir("/dev/shm"))
    seen.extend(block["person"])
    Path("/tmp/note").write_text("seen")
    Path("/dev/shm/note").write_text("seen")
    assert len(set(block["person"])) == 1
    return np.stack([block["x"], np.full(len(block), block["x"].mean()), np.full(len(block), float(left))], axis=1)


def recipe(rows=ul.table("people.csv", person="person", aside=0.2, map=embed), run=ul.run()):
    features = rows.map(embed)
    assert features.shape == (len(rows), 3)
    assert (features[:, 0] == rows["x"]).all()
    learnt, checked = rows.split(0.3)
    assert (learnt.map(embed)[:, 0] == learnt["x"]).all()
    assert all((block.map(embed)[:, 0] == block["x"]).all() for block in rows.blocks(5))
    start = None if run.start is None else json.loads(run.start["model.json"])["mean"]
    model = {"mean": features.mean(axis=0).tolist(), "start": start, "left": features[:, 2].tolist()}
    return ul.Published({"model.json": json.dumps(model)}, score=lambda aside: float(aside.map(embed)[:, 1].mean()))
'''


def write(folder: Path, people: Iterable[int], recipe: str = RECIPE) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "rows.py").write_text(recipe)
    draw, chosen = random.Random(5), set(people)
    rows = [{"person": f"p{person}", "x": draw.gauss(person % 7, 1)} for _ in range(3) for person in PEOPLE]
    with (folder / "people.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["person", "x"])
        writer.writeheader()
        writer.writerows(row for row in rows if int(str(row["person"])[1:]) in chosen)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recipes"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that were called on a block, in order; each stands once for each block."""
    functions: list[str] = []

    @contextmanager
    def counting(job: str, *args: Any, **kwargs: Any) -> Iterator[worlds.World]:
        make: Callable[..., AbstractContextManager[worlds.World]] = worlds.make_world
        with make(job, *args, **kwargs) as world:

            def carry_out(part: worlds.PartOrder) -> worlds.Outcome:
                functions.append(str(part.words["function"]))
                return world(part)

            yield carry_out

    monkeypatch.setattr(mapping, "make_world", counting)
    return functions


def published(world: World, model_id: str) -> bytes:
    return bytes(world.storage.store.read(world.head(model_id).checkpoint))


def is_trained_on(world: World, person: str) -> bool:
    named = subject_digest(world.storage.pepper, TENANT, person)
    return any(row.subject_digest == named for row in world.rows_of(Membership))


def kept(world: World, model_id: str) -> Mapping[str, str]:
    """The files of a model's parts, by key."""
    generation = world.generation(model_id).id
    return {part.key: part.result for part in world.rows_of(TrainedPart) if part.generation_id == generation}


@pytest.mark.parametrize("method", ["retrain", "shards", "late"])
def test_a_deletion_makes_no_block_and_destroys_the_persons(
    world: World, folder: Path, made: list[str], method: str
) -> None:
    write(folder, PEOPLE)
    world = world.configured(recipes=folder)
    model = world.live("rows", method, name="held", guarantee="exact")
    before, known = published(world, model), kept(world, model)
    trained = [person for person in PEOPLE if is_trained_on(world, f"p{person}")]
    aside = len(PEOPLE) - len(trained)
    assert aside > 0
    assert made.count("embed") == len(trained) + aside
    assert len(known) >= len(trained) + 1

    made.clear()
    request = world.delete(f"p{trained[0]}")
    world.work(model)
    assert world.task(request).status == "completed"
    after = published(world, model)
    assert after != before
    assert made.count("embed") == aside  # they are scored by, and nothing of them is kept
    gone = {key: file for key, file in known.items() if key not in kept(world, model)}
    assert len(gone) >= 2  # the person's block, and a training
    assert not any(world.storage.private.folder.holds(file) for file in gone.values())
    assert len(kept(world, model)) <= len(known) - 1

    write(folder, [person for person in PEOPLE if person != trained[0]])
    never = world.live("rows", method, name="never", guarantee="exact")
    assert published(world, never) == after
    assert b'"left": [0.0, 0.0' in after
    assert b"1.0" not in after[after.index(b'"left"') :]  # no block found what another left
