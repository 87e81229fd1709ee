"""A declaration refuses what it cannot mean, with the value and what to write instead."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from unlearning.rows import arrays, folder, public, query, table, via
from unlearning.types import RecipeError

REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: table("../a.csv", person="who"), "'../a.csv'", "without a leading /"),
    (lambda: table("/etc/passwd.csv", person="who"), "'/etc/passwd.csv'", "without a leading /"),
    (lambda: table("a/./b.csv", person="who"), "'a/./b.csv'", "data/patients.csv"),
    (lambda: table("a//b.csv", person="who"), "'a//b.csv'", "data/patients.csv"),
    (lambda: table("a\0.csv", person="who"), "not one beneath", "data/patients.csv"),
    (lambda: table("a.txt", person="who"), "'a.txt' names no format", "format="),
    (lambda: table("a.csv", person="who", format="xlsx"), "'xlsx'", "'csv;'"),
    (lambda: table("a.csv", person="who", format="csv\n"), "The format is", "'csv;'"),
    (lambda: table("a.csv", person=""), "''", "Name a column"),
    (lambda: table("a.csv", person=()), "no column of people", "person='patient'"),
    (lambda: table("a.csv", person=None), "None", "Name a column"),  # type: ignore[arg-type]
    (lambda: table("a.csv", person="who", id="__row"), "'__row'", "other than '__row'"),
    (lambda: table("a.csv", person="who", at=""), "at names", "Name a column"),
    (lambda: table("a.csv", person="who", aside=1), "aside is 1", "as 0.2"),
    (lambda: table("a.csv", person="who", aside=-0.1), "aside is -0.1", "as 0.2"),
    (lambda: table("a.csv", person="who", spelled="user"), "'user'", "user:{}"),
    (lambda: table("a.csv", person="who", spelled="{}{}"), "'{}{}'", "once"),
    (lambda: table("a.csv", person="who", nobody="drop"), "'drop'", "'keep'"),  # type: ignore[arg-type]
    (lambda: table("a.csv", person="who", types={"zip": "str"}), "'zip' is 'str'", "text, int"),
    (lambda: table("a.csv", person="who", types={"who": "int"}), "'who' is 'int'", "stay texts"),
    (lambda: query("postgresql://u:p@h/d", "SELECT 1", people={"v": "p"}, id="i"), "no setting's name", "as 'crm'"),
    (lambda: query("crm", "  ", people={"v": "p"}, id="i"), "no SQL", "SELECT"),
    (lambda: query("crm", "SELECT 1", people={}, person="p", id="i"), "no table of people", "people="),
    (lambda: query("crm", "SELECT 1", people={"s.v": "p"}, id="i"), "'s.v'", "without a schema"),
    (lambda: query("crm", "SELECT 1", people={"v": ""}, id="i"), "''", "Name a column"),
    (lambda: folder("..", index="a.csv", file="f", person="p"), "'..'", "data/patients.csv"),
    (lambda: folder("f", index="a.xls", file="f", person="p"), "'a.xls'", ".parquet"),
    (lambda: folder("f", index="a.csv", file="", person="p"), "file names", "Name a column"),
    (lambda: arrays(names="a.csv", person="p"), "no array", "x='x.npy'"),
    (lambda: arrays(names="a.csv", person="p", x="x.pkl"), "'x.pkl'", "numpy.save"),
    (lambda: arrays(names="a.csv", person="p", x="/x.npy"), "'/x.npy'", "data/patients.csv"),
    (lambda: public("a.bin", "abc"), "'abc'", "sha256sum a.bin"),
    (lambda: via("orders.doc", "order", "customer"), "'orders.doc'", ".csv"),
    (lambda: via("orders.csv", "", "customer"), "key names", "Name a column"),
]


@pytest.mark.parametrize(("declare", "what", "hint"), REFUSED, ids=[what for _, what, _ in REFUSED])
def test_what_cannot_be_meant_is_refused(declare: Callable[[], Any], what: str, hint: str) -> None:
    with pytest.raises(RecipeError) as refusal:
        declare()
    assert what in refusal.value.what
    assert hint in refusal.value.hint


def test_a_query_without_an_id_is_refused() -> None:
    with pytest.raises(RecipeError, match="names no id"):
        query("crm", "SELECT 1", people={"v": "p"}, id=None)  # type: ignore[arg-type]


def test_declarations_are_plain_and_frozen() -> None:
    types = {"zip": "text"}
    source = table("a.parquet", person=["who", "friend"], types=types)
    types["zip"] = "int"
    assert source.types == {"zip": "text"}
    assert json.loads(json.dumps(dataclasses.asdict(source)))["person"] == ["who", "friend"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.path = "b.parquet"


def test_the_person_of_a_query_is_the_column_that_its_tables_name() -> None:
    people = {"visits": "patient", "bills": "patient"}
    assert query("crm", "SELECT 1", people=people, id="i").person == ("patient",)
    assert query("crm", "SELECT 1", people=people, id="i", person="who").person == ("who",)


@pytest.mark.parametrize(
    ("path", "format"),
    [("a.CSV", "csv"), ("a.tsv", "csv\t"), ("a.feather", "arrow"), ("b.d/a.ndjson", "jsonl"), ("a.parquet", "parquet")],
)
def test_the_suffix_names_the_format(path: str, format: str) -> None:
    assert table(path, person="who").format == format
    assert table(path, person="who", format="json").format == "json"
