"""What a row of a typed table holds, in bytes: the same for the same values, and for no others."""

from __future__ import annotations

import hashlib
import struct
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from unlearning.rows import read_source, table
from unlearning.rows._read import ArrowTable, LoadedColumns

CELLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole": (pa.int64(), [0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, 2**63 - 2, -(2**63)]),
    "large": (pa.uint64(), [0, 2**63, 2**64 - 1]),
    "number": (pa.float64(), [0.0, 1.0, 0.1, float("nan"), float("inf"), 5e-324]),
    "word": (pa.string(), ["", "a", "aa", "\x1f", "\x00", "1"]),
    "other": (pa.large_string(), ["", "a", "=a", "None"]),
    "flag": (pa.bool_(), [False, True]),
    "list": (pa.list_(pa.int64()), [[], [1], [1, 2], [None], [1, None]]),
    "wide": (pa.large_list(pa.float64()), [[], [1.5, 2.0]]),
    "pair": (pa.list_(pa.float64(), 2), [[0.0, 1.0], [1.0, 0.0], [0.0, None]]),
    "words": (pa.list_(pa.string()), [[], ["a"], ["a", ""], ["a, "]]),
}
ROWS = st.fixed_dictionaries({name: st.sampled_from([None, *cells]) for name, (_, cells) in CELLS.items()})


def contents(columns: dict[str, pa.Array]) -> list[bytes]:
    return [bytes(row) for row in ArrowTable("t", LoadedColumns(pa.table(columns))).contents()]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(ROWS, min_size=2, max_size=12))
def test_contents_are_the_same_where_the_values_are(rows: list[dict[str, Any]]) -> None:
    """The twin compares the values themselves, where nan is nan."""
    found = contents({name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in CELLS.items()})
    values = [repr([*row.values()]) for row in rows]
    for one, other in product(range(len(rows)), repeat=2):
        assert (found[one] == found[other]) == (values[one] == values[other]), (rows[one], rows[other])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint32", "int64", "float16", "float32"])
def test_a_number_has_one_content_whatever_the_type_of_its_column(kind: str) -> None:
    """Pandas writes a column of whole numbers as fractions as soon as one of them is missing."""
    numbers = np.array([0, 1, 3])
    assert contents({"x": pa.array(numbers.astype(kind))}) == contents({"x": pa.array(numbers.astype("float64"))})


def test_a_text_does_not_read_like_two() -> None:
    """By a mark between them, the texts of these two rows were the same."""
    one, other = contents({"a": pa.array(["x\x1f=y", "x"]), "b": pa.array(["z", "y\x1f=z"])})
    assert one != other


def content(names: list[str], row: list[tuple[pa.DataType, Any]]) -> bytes:
    """The slow twin: what a row holds, put together value by value."""

    def number(value: float | None) -> bytes:
        nearest = float(0 if value is None else value)
        lacking = value - int(min(nearest, np.nextafter(2.0**63, 0.0))) if isinstance(value, int) else 0
        return struct.pack("<Bdq", value is not None, np.nan if nearest != nearest else nearest, lacking)

    kinds, numbers, texts, lists, lengths = [], b"", b"", b"", ([], [])
    for kind, value in row:
        of = kind.value_type if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType) else kind
        counts = pa.types.is_floating(of) or (pa.types.is_integer(of) and of != pa.uint64())
        kinds.append(("numbers" if of is not kind else "number") if counts else "text")
        if kinds[-1] == "number":
            numbers += number(value)
        elif kinds[-1] == "numbers":
            lengths[0].append(None if value is None else len(value))
            lists += b"".join(map(number, value or ()))
        else:
            text = repr(value) if of is not kind else value
            if of is kind and value is not None:
                text = f"={value}" if isinstance(value, str) else str(value).lower()
            lengths[1].append(None if text is None else len(text.encode()))
            texts += (text or "").encode()
    head = hashlib.sha256(repr([*zip(names, kinds, strict=True)]).encode()).digest()
    return head + numbers + b"".join(map(number, lengths[0] + lengths[1])) + texts + lists


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(ROWS, min_size=1, max_size=12))
def test_contents_are_those_that_are_put_together_value_by_value(rows: list[dict[str, Any]]) -> None:
    found = contents({name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in CELLS.items()})
    assert found == [content([*CELLS], [(kind, row[name]) for name, (kind, _) in CELLS.items()]) for row in rows]


def table_of_cells(folder: Path) -> None:
    count = max(len(cells) for _, cells in CELLS.values())
    columns = {name: pa.array([*cells, *[None] * (count - len(cells))], kind) for name, (kind, cells) in CELLS.items()}
    who = ["ann", "bo", "cy", "ann", "d\u00e9", "bo", "ann", "cy"]
    parquet.write_table(
        pa.table({"who": who, "id": [f"r{row}" for row in range(count)], **columns}), folder / "t.parquet"
    )


def test_the_digests_are_those_that_databases_hold(tmp_path: Path) -> None:
    """The constants were computed before rows were digested by blocks; others would make every sample another one."""
    table_of_cells(tmp_path)
    by_person = read_source(table("t.parquet", person="who"), tmp_path).units("rows")
    by_row = read_source(table("t.parquet", person="who", id="id"), tmp_path).units("rows")
    digests = [hashlib.sha256(units.digests.tobytes()).hexdigest() for units in (by_person, by_row)]
    assert digests == [
        "6e21050e059c0eeecbc92e8f0d61b4af950e71e36421570378854a6a74933f96",
        "76e1cb7c04c4cd086d4a5d30529e4ac8ec4240007abaa039ca26b8f0df460cbd",
    ]


def test_a_unit_s_digest_is_of_its_people_its_id_and_its_rows(tmp_path: Path) -> None:
    table_of_cells(tmp_path)
    for source in (table("t.parquet", person="who"), table("t.parquet", person="who", id="id")):
        reading = read_source(source, tmp_path)
        units, rows = reading.units("rows"), [hashlib.sha256(row).digest() for row in reading.unread.contents()]
        for unit, digest in enumerate(units.digests):
            theirs = b"".join(rows[row] for row in np.flatnonzero(units.of_rows == unit))
            of = f"rows {units.people[unit]!r} {units.ids[unit]}".encode()
            assert digest.tobytes() == hashlib.sha256(of + theirs).digest()
