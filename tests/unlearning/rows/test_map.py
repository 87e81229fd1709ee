"""Functions of one person's rows: what they are called on, how results are put together, what a block is known by."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unlearning.rows import (
    MappedBefore,
    Rows,
    Source,
    arrays,
    block_to_bytes,
    blocks_from_bytes,
    folder,
    map_block,
    open_rows,
    query,
    read_source,
    rows_from_bytes,
    rows_to_bytes,
    set_apart,
    source_to_json,
    table,
)
from unlearning.types import RecipeError

LINES = ["r0,a,1", "r1,b,2", "r2,a,3", "r3,c,4", "r4,b,5", "r5,a,6", "r6,d,7"]


def opened(root: Path, **declared: Any) -> Rows:
    (root / "t.csv").write_text("\n".join(["row,who,x", *LINES]))
    return open_rows(table("t.csv", **({"person": "who"} | declared)), root, salt=b"salt")


def mean(block: Rows) -> Any:
    """Each number, and the mean of the block."""
    return np.stack([block["x"], np.full(len(block), block["x"].mean())], axis=1)


EXPECTED = [[1, 10 / 3], [2, 3.5], [3, 10 / 3], [4, 4], [5, 3.5], [6, 10 / 3], [7, 7]]


def test_a_function_is_called_on_all_rows_of_a_person_and_answers_in_order(tmp_path: Path) -> None:
    blocks: list[list[str]] = []

    def note(block: Rows) -> Any:
        blocks.append(block["who"].tolist())
        assert block["__row"].tolist() == list(range(len(block)))
        return torch.tensor(block["x"])

    rows = opened(tmp_path)
    assert rows.map(note).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert blocks == [["a", "a", "a"], ["b", "b"], ["c"], ["d"]]
    assert rows.map(mean).tolist() == EXPECTED
    assert opened(tmp_path, id="row").map(mean).tolist() == EXPECTED  # whether rows are named makes no difference


def test_a_person_is_whole_where_rows_are_taken(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    assert [row for block in rows.blocks(2) for row in block.map(mean).tolist()] == EXPECTED
    for part in (*rows.split(0.5), *set_apart(rows, 0.5), *rows.split(0.5)[0].split(0.5)):
        assert part.map(mean).tolist() == [EXPECTED[row] for row in part["__row"]]
    called: list[str] = []
    first, _ = rows.split(0.5)
    first.map(lambda block: called.append(block["who"][0]) or block["x"])  # type: ignore[func-returns-value]
    assert set(called) == set(first["who"])  # and nobody else's rows are computed


def test_rows_of_nobody_and_of_several_people_are_blocks_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who,other,x\na,,1\n,,2\na,b,4\n,,8\na,,16\n")
    rows = open_rows(table("t.csv", person=("who", "other"), nobody="keep"), tmp_path)
    assert rows.map(lambda block: np.full(len(block), block["x"].sum())).tolist() == [17, 10, 4, 10, 17]


def test_files_are_handed_on(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    (tmp_path / "factor").write_text("3")
    scaled = rows.map(lambda block, factor: block["x"] * int(factor.read_text()), factor=tmp_path / "factor")
    assert scaled.tolist() == [3, 6, 9, 12, 15, 18, 21]


@pytest.mark.parametrize(
    ("result", "refusal"),
    [
        (lambda block: block["x"].mean(), r"returned float64 of shape \(\) for a block of 3 rows. Return an array"),
        (lambda block: block["x"][:1], r"returned int64 of shape \(1,\) for a block of 3 rows"),
        (lambda block: block["who"], "returned object of shape"),
        (lambda block: block["x"] + 1j, "returned complex128"),
        (lambda block: np.ones(len(block), "f4" if block["x"][0] == 2 else "f8"), r"float64 of shape \(n\) for one"),
        (lambda block: np.ones((len(block), len(block))), r"\(n, 3\) for one block and float64 of shape \(n, 2\)"),
    ],
)
def test_what_is_no_array_of_one_kind_is_refused(tmp_path: Path, result: Any, refusal: str) -> None:
    with pytest.raises(RecipeError, match=refusal):
        opened(tmp_path).map(result)


def test_in_a_world_no_function_is_called(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    made = memoryview(b"".join(block_to_bytes(map_block(mean, block, {})) for block in rows.blocks_at(range(4))))

    def before(people: Any) -> Mapping[Any, MappedBefore]:
        return {mean: MappedBefore(blocks_from_bytes(mean, made, people), {})}

    there = rows_from_bytes(memoryview(rows_to_bytes(rows)), before)
    (tmp_path / "t.csv").unlink()
    assert there.map(mean).tolist() == EXPECTED
    assert [row for block in there.blocks(3) for row in block.map(mean).tolist()] == EXPECTED
    assert there.split(0.5)[1].map(mean).tolist() == rows.split(0.5)[1].map(mean).tolist()
    with pytest.raises(RecipeError, match=r"rows.map\(<lambda>\) was not made before.*map=<lambda>"):
        there.map(lambda block: block["x"])
    with pytest.raises(RecipeError, match="was made with no file, and is asked for with words"):
        there.map(mean, words=tmp_path)


def test_a_source_names_functions_that_have_names() -> None:
    assert table("t.csv", person="who", map=mean).functions == (mean,)
    assert table("t.csv", person="who", map=[mean, opened]).functions == (mean, opened)
    assert "map" not in source_to_json(table("t.csv", person="who", map=mean))
    for unnamed in (lambda block: block, "mean", 7):
        with pytest.raises(RecipeError, match=r"map names .*, which is no function with a name. Write `def embed"):
            table("t.csv", person="who", map=unnamed)


ROWS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("a", 6), ("d", 7)]


def source_of(kind: str, root: Path, rows: list[tuple[str, Any]]) -> Source:
    """Return a source of this kind, with these rows."""
    (root / "t.csv").write_text("\n".join(["who,x", *(f"{who},{x}" for who, x in rows)]))
    if kind == "query":
        (root / "t.db").unlink(missing_ok=True)
        with sqlite3.connect(root / "t.db") as database:
            database.execute("create table t (id integer, who text, x integer)")
            database.executemany("insert into t values (?, ?, ?)", [(x, who, x) for who, x in rows])
        return query("crm", "select * from t", people={"t": "who"}, id="id")  # type: ignore[no-any-return]
    if kind == "arrays":
        np.save(root / "x.npy", np.array([[x, x] for _, x in rows]))
        return arrays(names="t.csv", person="who", v="x.npy")  # type: ignore[no-any-return]
    if kind == "folder":
        (root / "files").mkdir(exist_ok=True)
        for _, x in rows:
            (root / "files" / f"{x}").write_text(f"content of {x}")
        return folder("files", index="t.csv", file="x", person="who")  # type: ignore[no-any-return]
    return table("t.csv", person="who", at=None)  # type: ignore[no-any-return]


def blocks_of(kind: str, root: Path, rows: list[tuple[str, Any]], without: str = "") -> dict[str, tuple[str, bytes]]:
    """Return the digest of each person's block, and the bytes that its function is given."""
    reading = read_source(source_of(kind, root, rows), root, databases={"crm": f"sqlite:///{root / 't.db'}"})
    units = reading.units()
    staying = np.array([number for number, people in enumerate(units.people) if without not in people])
    there, digests = reading.rows_and_blocks(units, staying, b"salt")
    blocks = [*there.blocks_at(range(len(digests)))]
    return {
        block["who"][0]: (digest, bytes(memoryview(rows_to_bytes(block))))
        for digest, block in zip(digests, blocks, strict=True)
    }


@pytest.mark.parametrize("kind", ["table", "query", "arrays", "folder"])
def test_a_block_is_known_by_what_its_function_is_given(tmp_path: Path, kind: str) -> None:
    everybody = blocks_of(kind, tmp_path, ROWS)
    assert len({digest for digest, _ in everybody.values()}) == len(everybody) == 4
    left = blocks_of(kind, tmp_path, ROWS, without="a")
    assert left == {who: block for who, block in everybody.items() if who != "a"}
    assert left == blocks_of(kind, tmp_path, [row for row in ROWS if row[0] != "a"])  # never held
    changed = blocks_of(kind, tmp_path, [*ROWS, ("c", 8)])
    assert [who for who in everybody if changed[who] != everybody[who]] == ["c"]
    assert changed["c"][0] != everybody["c"][0]


def test_a_type_that_somebody_brings_about_makes_other_blocks(tmp_path: Path) -> None:
    everybody = blocks_of("table", tmp_path, [*ROWS, ("e", "1.5")])
    without = blocks_of("table", tmp_path, [*ROWS, ("e", "1.5")], without="e")
    assert not {digest for digest, _ in without.values()} & {digest for digest, _ in everybody.values()}


def test_what_a_file_holds_is_in_the_digest_of_its_block(tmp_path: Path) -> None:
    before = blocks_of("folder", tmp_path, ROWS)
    source = source_of("folder", tmp_path, ROWS)
    (tmp_path / "files" / "4").write_text("another scan")
    reading = read_source(source, tmp_path)
    _, digests = reading.rows_and_blocks(reading.units(), np.arange(4), b"salt")
    assert [old == new for (old, _), new in zip(before.values(), digests, strict=True)] == [True, True, False, True]
