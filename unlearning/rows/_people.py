"""The people of each row, and the sides that they fall on."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import numpy as np

from unlearning.accounting import ids
from unlearning.columns import Column
from unlearning.types import RecipeError

People = tuple[str, ...]

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


def people_of(columns: Sequence[Sequence[Any]], names: Sequence[str], spelled: str) -> Column[People]:
    """Return the people of each row as requests name them, from one column of n cells or several.

    Args:
        columns: n cells each: a text, a list of texts, or None.
        names: of the columns, for refusals.
        spelled: how the cells write an id; see ``Source``.

    Raises:
        RecipeError: a cell is not written so, or is no id. It names the row, and never the id.
    """
    read = _reader(spelled)
    rows = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
    cells: Column[Any] = Column.of(map(_hashable, rows))

    def people_in(cell: Any) -> People:
        try:
            return tuple(sorted({read(text) for text in _texts_in(cell)}))
        except ValueError as error:
            place = cells.codes.tolist().index(cells.values.index(cell))
            what = f"Row {place + 1} of the column {' or '.join(names)} holds no id: {error}"
            raise RecipeError(what, "Correct the cell, or say spelled= as the source writes ids.") from None

    return cells.map(people_in)


def _hashable(cell: Any) -> Any:
    return tuple(map(_hashable, cell)) if isinstance(cell, list | tuple) else cell


def _texts_in(cell: Any) -> Iterator[str]:
    """Yield the texts of a cell, of a list, or of one cell or list by column."""
    if isinstance(cell, tuple):
        for inner in cell:
            yield from _texts_in(inner)
    elif cell is not None:
        yield cell


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
    return bool(people) and all(_place(person, salt, label) < share for person in people)


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
