"""Functions of one person's rows: made in worlds of these alone, once, and gone with the person."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Membership, TrainedPart
from expunge_workers.runtime import mapping, worlds
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


def recipe(rows=ul.table("people.csv", person="person", aside=0.4, map=embed), run=ul.run()):
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
    tried_twice = made.count("embed") - len(trained) - aside
    assert 1 <= tried_twice <= 5  # the first block of all, and of each shard
    assert len(known) >= len(trained) + 1

    made.clear()
    request = world.delete(f"p{trained[0]}")
    world.work(model)
    assert world.task(request).status == "completed"
    after = published(world, model)
    assert after != before
    # they are scored by, and nothing of them is kept; a shard of the person alone is trained no more
    assert made.count("embed") in (0, aside)
    gone = {key: file for key, file in known.items() if key not in kept(world, model)}
    assert len(gone) >= 2  # the person's block, and a training
    assert not any(world.storage.private.folder.holds(file) for file in gone.values())
    assert len(kept(world, model)) <= len(known) - 1

    write(folder, [person for person in PEOPLE if person != trained[0]])
    never = world.live("rows", method, name="never", guarantee="exact")
    assert published(world, never) == after
    lists = [json.loads(found) for found in re.findall(rb'"left": (\[[^]]*\])', after)]
    assert lists
    assert not any(map(any, lists))  # no block found what another left


FAILING = """
import json, unlearning as ul


def embed(block):
    if block["person"][0] == "p3":
        {body}
    return block["x"]


def recipe(rows=ul.table("people.csv", person="person"{declared})):
    return ul.Published({{"sum.json": json.dumps({{"sum": float(rows.map({asked}).sum())}})}})
"""


@pytest.mark.parametrize(
    ("body", "declared", "asked", "reason"),
    [
        ("raise KeyError('p3')", ", map=embed", "embed", "The recipe raised KeyError at line 7 of rows.py"),
        ("return open('people.csv')", ", map=embed", "embed", "opened a file at line 7 of rows.py, and a recipe"),
        ("return [1]", ", map=embed", "embed", "embed() returned int64 of shape (1,) for a block of 3 rows."),
        ("return block['x'] > 0", ", map=embed", "embed", "embed() returned float64 of shape (n) for one block"),
        ("pass", "", "embed", "rows.map(embed) was not made before the training"),
        ("pass", ", map=embed", "len", "rows.map(len) was not made before the training"),
        ("pass", ", map=embed", "embed, words=1", "was made with no file, and is asked for with words"),
    ],
)
def test_a_function_that_fails_is_reported_as_the_recipe_is(
    world: World, folder: Path, body: str, declared: str, asked: str, reason: str
) -> None:
    write(folder, PEOPLE[:5], FAILING.format(body=body, declared=declared, asked=asked))
    world = world.configured(recipes=folder)
    model = world.register("rows", "retrain", guarantee="exact")
    world.work(model)
    assert world.model(model).status == "refused"
    assert reason in str(world.model(model).reason)


NAMED = """
import json, unlearning as ul


def place(block):
    return block["x"].argsort()


def recipe(rows=ul.table("visits.csv", person="person", id="visit", map=place)):
    return ul.Published({"places.json": json.dumps({"places": rows.map(place).tolist()})})
"""


def test_a_row_that_leaves_alone_makes_the_block_of_its_person_again(
    world: World, folder: Path, made: list[str]
) -> None:
    folder.mkdir()
    (folder / "rows.py").write_text(NAMED)
    lines = [f"v{number},p{number % 3},{-number}\n" for number in range(9)]
    (folder / "visits.csv").write_text("".join(["visit,person,x\n", *lines]))
    world = world.configured(recipes=folder)
    model = world.live("rows", "retrain", guarantee="exact", granularity="sample")
    assert json.loads(published(world, model))["places"] == [2, 2, 2, 1, 1, 1, 0, 0, 0]
    made.clear()
    request = world.delete(samples=["v4"])
    world.work(model)
    assert world.task(request).status == "completed"
    assert made == ["place"]
    assert json.loads(published(world, model))["places"] == [2, 1, 2, 1, 1, 0, 0, 0]
    assert len(kept(world, model)) == 4  # three blocks and a training


def test_a_function_that_does_not_repeat_is_found(world: World, folder: Path) -> None:
    write(folder, PEOPLE[:3], FAILING.format(body="pass", declared=", map=embed", asked="embed"))
    text = (folder / "rows.py").read_text()
    (folder / "rows.py").write_text(text.replace('block["x"]', 'block["x"] + float(__import__("os").urandom(1)[0])'))
    world = world.configured(recipes=folder, trial_seconds=60)
    model = world.live("rows", "retrain", guarantee="exact")
    assert world.head(model).claim["world"]["repeats"] is False


SCANS = """
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import unlearning as ul


def read(block, words):
    \"""The size of each file, and how many files of others lie beside it.\"""
    beside = [len(os.listdir(Path(file).parent)) for file in block["file"]]
    return np.stack([[len(Path(file).read_text()) + len(words.read_text()) for file in block["file"]], beside], axis=1)


def recipe(
    scans=ul.folder("scans", index="index.csv", file="file", person="who", map=[read]),
    words=ul.public("words.txt", sha256="%s"),
):
    return ul.Published({"scans.json": json.dumps({"sizes": scans.map(read, words=words).tolist()})})
"""


def test_a_block_reads_its_own_files_and_public_ones_alone(world: World, folder: Path) -> None:
    (folder / "scans").mkdir(parents=True)
    (folder / "words.txt").write_text("four")
    for number in range(4):
        (folder / "scans" / f"{number}.txt").write_text("x" * number)
    (folder / "index.csv").write_text("file,who\n0.txt,a\n1.txt,b\n2.txt,a\n3.txt,c\n")
    (folder / "rows.py").write_text(SCANS % sha256(b"four").hexdigest())
    world = world.configured(recipes=folder)
    model = world.live("rows", "retrain", guarantee="exact")
    assert json.loads(published(world, model))["sizes"] == [[4, 2], [5, 1], [6, 2], [7, 1]]


def test_the_page_shows_a_whole_recipe(world: World, folder: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "rows.md").read_text()
    *_, text = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    folder.mkdir()
    np.save(folder / "encoder.npy", np.random.default_rng(0).standard_normal((256, 16)))
    digest = sha256((folder / "encoder.npy").read_bytes()).hexdigest()
    (folder / "rows.py").write_text(re.sub(r'sha256="[0-9a-f]{64}"', f'sha256="{digest}"', text))
    (folder / "letters.csv").write_text(
        "patient,letter,urgent\n" + "".join(f"p{n % 5},pain {n},{n % 2}\n" for n in range(9))
    )
    model = world.configured(recipes=folder).live("rows", "retrain", guarantee="exact")
    assert len(json.loads(published(world, model))["slope"]) == 16
