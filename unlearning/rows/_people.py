"""The people of each row, and the sides that they fall on."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import numpy as np

from unlearning.accounting import ids
from unlearning.columns import Column
from unlearning.types import RecipeError

People = tuple[str, ...]
Cell = str | tuple[str | None, ...] | None
"""an id as its column holds it, several of them, or none"""

MISSING = frozenset({"", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null"})
"""cells of a csv that say that nothing is known"""


def text_of(value: Any, column: str) -> str | None:
    """Return an id as text, and None for a missing one. Raises RecipeError for a type that ids may not have."""
    if value is None or (isinstance(value, str) and value in MISSING):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise refused_type(column, type(value).__name__)


def refused_type(column: str, kind: object) -> RecipeError:
    """Return the refusal of a column of people or ids that holds what no request could name."""
    what = f"The column {column!r} names people or rows, and holds {kind}."
    return RecipeError(
        what,
        "One missing number makes floats of a column, and 7.0 is nobody's id. "
        f"Write it as whole numbers or texts: frame[{column!r}].astype('Int64').astype('string').",
    )


def refused_list(column: str) -> RecipeError:
    """Return the refusal of a column that holds several ids in one cell, and may hold one."""
    return RecipeError(f"The column {column!r} holds lists.", "Write one id in each row.")


def people_of(columns: Sequence[Column[Cell]], names: Sequence[str], spelled: str) -> Column[People]:
    """Return the people of each row as requests name them, from one column of n cells or several.

    Args:
        names: of the columns, for refusals.
        spelled: how the cells write an id; see ``Source``.

    Raises:
        RecipeError: a cell is not written so, or is no id. It names the row, and never the id.
    """
    read = _reader(spelled)
    rows: Column[Any] = columns[0] if len(columns) == 1 else Column.of(zip(*columns, strict=True))

    def people_in(row: Any) -> People:
        cells = (row,) if len(columns) == 1 else row
        texts = (text for cell in cells for text in (cell if isinstance(cell, tuple) else (cell,)))
        try:
            return tuple(sorted({read(text) for text in texts if text is not None and text not in MISSING}))
        except ValueError as error:
            place = rows.codes.tolist().index(rows.values.index(row))
            what = f"Row {place + 1} of the column {' or '.join(names)} holds no id: {error}"
            raise RecipeError(what, "Correct the cell, or say spelled= as the source writes ids.") from None

    return rows.map(people_in)


def _reader(spelled: str) -> Callable[[str], str]:
    """Return what reads a cell. It raises ValueError, which does not repeat the cell."""
    start, end = spelled.split("{}")

    def read(cell: str) -> str:
        if not (cell.startswith(start) and cell.endswith(end) and len(cell) > len(start) + len(end)):
            raise ValueError(f"it is not spelled {spelled!r}.")
        return ids.spelled(cell[len(start) : len(cell) - len(end)])

    return read


def is_aside(people: People, share: float, salt: bytes, label: str) -> bool:
    """Return whether all people of a row fall into a share of them, by a keyed hash of each id.

    A row of people from both sides stays with the larger side. A row of nobody is never apart.
    """
    return bool(people and share) and all(_place(person, salt, label) < share for person in people)


def _place(person: str, salt: bytes, label: str) -> float:
    """Return a number from 0 to 1 that depends on the salt, the label and the person alone."""
    digest = hmac.digest(salt, f"expunge {label} {person}".encode(), "sha256")
    return int.from_bytes(digest[:8]) / 2**64


def numbers_of(people: Iterable[People]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a number (n,) int64 for each row, by first appearance; rows that share a person have one number.

    A row of nobody has a number of its own.
    """
    leaders: dict[str, str] = {}

    def leader(person: str) -> str:
        while leaders.setdefault(person, person) != person:
            leaders[person] = leaders[leaders[person]]  # halves the way for the next one
            person = leaders[person]
        return person

    rows = list(people)
    for row in rows:
        for person in row[1:]:
            leaders[leader(person)] = leader(row[0])
    numbers: dict[str | int, int] = {}
    groups = (leader(row[0]) if row else place for place, row in enumerate(rows))
    return np.fromiter((numbers.setdefault(group, len(numbers)) for group in groups), dtype=np.int64, count=len(rows))
