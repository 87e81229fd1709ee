"""Reading people from a CSV file: one row for each person."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from expunge_client.cli.output import USAGE, CommandError

_COLUMNS = ("subject_id", "case_id", "received_at")
_HINT = "The first row names the columns: subject_id and, if you like, case_id and received_at."
_LONGEST_ID = 512
_SHOWN = 5
# the service's rules; tests/service/cli/test_cases.py compares them
CASE_ID = r"^[A-Za-z0-9][A-Za-z0-9._:/#-]{0,63}$"
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
HIDDEN = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
)
"""characters that no reader sees, and halves of surrogate pairs"""


def read_people(path: Path, due_at: str | None = None) -> list[dict[str, str]]:
    """Return the rows as parts of orders. A cell that is empty is left out.

    Every row is checked as the service will check it, so that none is refused after others were accepted. ``due_at``
    is the deadline of all of them. Raises CommandError, which names rows and never what they hold.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path} cannot be read as CSV: {type(error).__name__}.", _HINT, USAGE) from None
    if not rows:
        raise CommandError(f"{path} has no rows.", _HINT, USAGE)
    columns = list(reader.fieldnames or ())
    if "subject_id" not in columns or not set(columns) <= set(_COLUMNS):
        raise CommandError(f"{path} has no column subject_id, or one of another name.", _HINT, USAGE)
    if len(set(columns)) < len(columns):
        raise CommandError(f"{path} names a column twice.", "Give each column once.", USAGE)
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values() or not row["subject_id"].strip():
            raise CommandError(f"Row {number} of {path} has no subject_id, or too few or too many cells.", _HINT, USAGE)
    people = [{name: cell.strip() for name, cell in row.items() if cell.strip()} for row in rows]
    deadline = None if due_at is None else _moment(due_at, "--due-at")
    found = [f"row {number}: {what}" for number, person in enumerate(people, 1) for what in _faults(person, deadline)]
    if found:
        what = f"{len(found)} faults in {path}; {'; '.join(found[:_SHOWN])}."
        raise CommandError(what, "Nothing was sent. Correct these rows and run the command again.", USAGE)
    return people


def read_decisions(path: Path, columns: tuple[str, ...], *, orders: bool = False) -> list[dict[str, str]]:
    """Return the rows of a CSV file of decisions, which has just these columns. Raises CommandError, which names rows.

    ``request`` is the id of a request, ``subject_id`` a person's. ``orders``: the file may also be one of orders, whose
    ``case_id`` names the request.
    """
    hint = f"The first row names the columns: {' and '.join(columns)}{', or case_id for request' * orders}."
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path} cannot be read as CSV: {type(error).__name__}.", hint, USAGE) from None
    names = list(reader.fieldnames or ())
    if orders and "case_id" in names:
        names = ["request" if name == "case_id" else name for name in names if name != "received_at"]
        rows = [row | {"request": row["case_id"]} for row in rows]
    if not rows or sorted(names) != sorted(columns):
        raise CommandError(f"{path} has no rows, or other columns.", hint, USAGE)
    for number, row in enumerate(rows, start=1):
        if None in row or not all(row[name] and row[name].strip() for name in columns):
            raise CommandError(f"Row {number} of {path} has too few or too many cells.", hint, USAGE)
    return [{name: row[name].strip() for name in columns} for row in rows]


def _faults(person: dict[str, str], deadline: datetime | None) -> Iterator[str]:
    """Yield what the service would refuse."""
    if re.search(f"[{HIDDEN}]", person["subject_id"]):
        yield "subject_id: An id must hold no invisible or control characters"
    if len(person["subject_id"]) > _LONGEST_ID:
        yield f"subject_id has more than {_LONGEST_ID} characters"
    if "case_id" in person and not re.fullmatch(CASE_ID, person["case_id"]):
        yield "case_id takes at most 64 letters, digits and ._:/#-, and begins with a letter or digit"
    if "received_at" in person:
        try:
            received = _read(person["received_at"])
        except ValueError as error:
            yield f"received_at {error}"
            return
        if received > datetime.now(UTC):
            yield "received_at lies in the future"
        if deadline is not None and deadline < received:
            yield "received_at lies after --due-at"


def _moment(text: str, name: str) -> datetime:
    try:
        return _read(text)
    except ValueError as error:
        raise CommandError(f"{name} {error}.", "Nothing was sent.", USAGE) from None


def _read(text: str) -> datetime:
    """Return the moment. Raises ValueError, which does not repeat the text."""
    if not RFC_3339.fullmatch(text):
        raise ValueError("must be an RFC 3339 date and time with its offset, as 2026-01-31T12:00:00Z")
    try:
        when = datetime.fromisoformat(text.upper())
    except ValueError:
        when = None
    if when is None or not 1970 < when.year < 9999:
        raise ValueError("must be a date and time between the years 1971 and 9998")
    return when
