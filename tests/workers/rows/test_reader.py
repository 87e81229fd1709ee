"""A function of the recipe's own reads everybody: rows leave afterwards, and that it mixes no people is its word."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import unlearning as ul
from tests.workers.rows.data import APART, EVERYBODY, forget, published, rows_of, trained_on
from tests.workers.worlds import World
from unlearning.accounting.world import READ
from unlearning.rows import call_recipe

READS = """
import pandas


def read(path):
    notes = [(note.stem, line.split(";")) for note in sorted(path.glob("*.note")) for line in note.read_text().split()]
    return pandas.DataFrame(
        [(person, float(x), float(y), word) for person, (x, y, word) in notes], columns=["person", "x", "y", "word"]
    )

"""
BY_READER = APART.replace(
    'ul.table("people.csv", person="person", aside=0.2)', 'ul.reader(read, "notes", person="person", aside=0.2)'
)
NO_TABLE = READS.replace("pandas.DataFrame(", "len(").replace(', columns=["person", "x", "y", "word"]', "")
ELSEWHERE = READS + "    (path.parent / 'other.txt').read_text()\n"


def lay_out(folder: Path, people: Iterable[int] = EVERYBODY, reads: str = READS) -> None:
    (folder / "notes").mkdir(parents=True, exist_ok=True)
    for note in (folder / "notes").iterdir():
        note.unlink()
    for row in rows_of(people):
        with (folder / "notes" / f"{row['person']}.note").open("a") as note:
            note.write(f"{row['x']!r};{row['y']!r};{row['word']}\n")
    (folder / "other.txt").write_text("of others")
    (folder / "rows.py").write_text(reads + BY_READER)


@pytest.mark.parametrize("method", ["retrain", "shards"])
def test_a_deletion_is_that_of_notes_without_the_person_on_the_operators_word(
    world: World, folder: Path, method: str
) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder)
    held = world.live("rows", method, name="held")
    first, second = trained_on(world)[:2]
    forget(world, held, first, second)
    head = world.head(held)
    assert head.claim["guarantee"] == "exact" and head.claim["operators_word"]
    assert (head.claim["world"]["sources"], head.claim["world"]["own_readers"]) == (["own program"], 1)
    assert any(sentence.endswith(READ) for sentence in head.claim["declared"])
    lay_out(folder, (person for person in EVERYBODY if person not in (first, second)))
    never = world.live("rows", method, name="never")
    assert published(world, never) == published(world, held)


def test_a_reader_that_opens_another_file_is_refused(world: World, folder: Path) -> None:
    lay_out(folder, reads=ELSEWHERE.replace("    return", "    (path.parent / 'other.txt').read_text()\n    return"))
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    assert world.model(model_id).status == "refused" and "other.txt" in str(world.model(model_id).reason)


def test_what_is_no_table_is_refused_and_named(world: World, folder: Path) -> None:
    lay_out(folder, reads=NO_TABLE)
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    assert "read() gave a int that is no table" in str(world.model(model_id).reason)


def test_notes_behind_a_link_are_refused(world: World, folder: Path) -> None:
    lay_out(folder)
    (folder / "notes").rename(folder.parent / "elsewhere")
    (folder / "notes").symlink_to(folder.parent / "elsewhere")
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    assert "passes through a symbolic link" in str(world.model(model_id).reason)


def test_a_function_that_the_module_does_not_name_is_refused(world: World, folder: Path) -> None:
    lay_out(folder, reads="def made():\n    return lambda path: None\n\nread = made()\n")
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    assert "Write `def read(path): ...` in the recipe's module" in str(world.model(model_id).reason)


def test_called_by_hand_it_reads_here(folder: Path) -> None:
    lay_out(folder)
    space: dict[str, object] = {}
    exec(READS + BY_READER, space)
    made = call_recipe(space["recipe"], lambda _: folder)  # type: ignore[arg-type]
    assert isinstance(made, ul.Published) and made.files
