"""What a row of a typed table holds, in bytes: the same for the same values, and for no others."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    return [*ArrowTable("t", LoadedColumns(pa.table(columns))).contents()]


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
