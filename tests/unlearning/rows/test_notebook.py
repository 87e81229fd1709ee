"""Called by hand, a recipe opens its sources itself, with everybody in them; written to bytes, rows come back."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import unlearning as ul
from unlearning.rows import (
    Rows,
    Source,
    open_rows,
    read_source,
    rows_from_bytes,
    rows_to_bytes,
    source_from_json,
    source_to_json,
)
from unlearning.rows.declarations import ArraysSource, FolderSource, QuerySource, TableSource


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = "".join(f"p{row % 7},{row * 1.5},{'high' if row > 20 else 'low'}\n" for row in range(30))
    (tmp_path / "people.csv").write_text(f"person,x,level\n{lines}")
    np.save(tmp_path / "x.npy", np.arange(60, dtype=np.float32).reshape(30, 2))
    (tmp_path / "words.txt").write_text("fever\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_that_is_called_by_hand_opens_its_sources(folder: Path) -> None:
    digest = hashlib.sha256((folder / "words.txt").read_bytes()).hexdigest()

    def recipe(
        rows: ul.Rows = ul.table("people.csv", person="person"),
        words: Path = ul.public("words.txt", digest),
        run: ul.TrainingRun = ul.run(),
    ) -> ul.Published:
        assert run.start is None and words.read_text() == "fever\n" and Path(words).exists()
        return ul.Published({"model.json": f'{{"rows": {len(rows)}, "x": {rows["x"].sum()}}}'})

    assert recipe().files == {"model.json": b'{"rows": 30, "x": 652.5}'}


def test_functions_of_rows_are_called_by_hand_too(folder: Path) -> None:
    def doubled(block: ul.Rows) -> np.ndarray:
        return np.asarray(block["x"]) * 2

    rows = ul.table("people.csv", person="person", map=doubled)
    assert rows.map(doubled).tolist() == [2 * x for x in rows["x"]]


def test_who_is_kept_apart_is_not_trained_on_by_hand_either(folder: Path) -> None:
    rows = ul.table("people.csv", person="person", aside=0.5)
    assert 0 < len(rows) < 30


def test_an_attribute_that_no_rows_have_is_an_ordinary_error(folder: Path) -> None:
    with pytest.raises(AttributeError):
        ul.table("people.csv", person="person").columns_of  # noqa: B018


@pytest.mark.parametrize(
    "source",
    [
        ul.table("people.csv", person=("person",), aside=0.1, types={"x": "float"}),
        ul.table("people.csv", person=ul.via("people.csv", "level", "person"), nobody="keep"),
        ul.query("crm", "SELECT * FROM visits", people={"visits": "person"}, id="id"),
        ul.folder("photos", index="people.csv", file="level", person="person"),
        ul.arrays(names="people.csv", person="person", x="x.npy"),
    ],
)
def test_a_source_is_read_back_from_json(source: object) -> None:
    assert source_from_json(source_to_json(source)) == source  # type: ignore[arg-type]


@pytest.mark.parametrize("without", [frozenset[str](), frozenset({"p3"}), frozenset(f"p{n}" for n in range(7))])
@pytest.mark.parametrize("kind", ["table", "arrays"])
def test_rows_come_back_from_their_bytes(folder: Path, kind: str, without: frozenset[str]) -> None:
    named = {"person": "person"}
    source = ul.table("people.csv", **named) if kind == "table" else ul.arrays(names="people.csv", x="x.npy", **named)
    if kind == "arrays":
        (folder / "people.csv").write_text((folder / "people.csv").read_text().replace("person,x", "person,y"))
    rows = open_rows(source, folder, without=without, salt=b"salt")
    data = bytes(rows_to_bytes(rows))
    again = rows_from_bytes(memoryview(data))
    assert again.arrow().equals(rows.arrow()) and bytes(rows_to_bytes(again)) == data
    assert [*again.people] == [*rows.people] and [*again._ids] == [*rows._ids] and [*again._people] == [*rows._people]
    assert all((again[name] == rows[name]).all() for name in rows.columns)
    assert [len(side) for side in again.split(0.3)] == [len(side) for side in rows.split(0.3)]
    assert all(person.encode() not in data for person in without)


def test_the_rows_of_some_units_are_those_without_the_others(folder: Path) -> None:
    source = ul.table("people.csv", person="person")
    reading = read_source(source, folder)
    units = reading.units()
    staying = np.array([number for number, people in enumerate(units.people) if people != ("p3",)])
    chosen, without = (
        reading.rows(units, staying, b"s"),
        open_rows(source, folder, without=frozenset({"p3"}), salt=b"s"),
    )
    assert bytes(rows_to_bytes(chosen)) == bytes(rows_to_bytes(without))
    assert units.counts.tolist() == [5, 5, 4, 4, 4, 4, 4] and not units.ids[0]
    (folder / "people.csv").write_text((folder / "people.csv").read_text().replace("p4,6.0,low", "p4,6.5,low"))
    edited = read_source(source, folder).units()
    moved = (edited.digests != units.digests).any(axis=1)
    assert [people for people, differs in zip(units.people, moved, strict=True) if differs] == [("p4",)]


@pytest.mark.parametrize("kind", [TableSource, QuerySource, FolderSource, ArraysSource])
def test_no_field_of_a_source_hides_what_rows_have(kind: type[Source]) -> None:
    """Or ``rows.map(embed)`` would call the functions that the source names."""
    assert not [field.name for field in fields(kind) if hasattr(Rows, field.name)]
