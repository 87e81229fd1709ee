"""Reading people from a CSV file: one row for each person."""

from __future__ import annotations

import csv
from pathlib import Path

from service.cli.output import USAGE, CommandError

_COLUMNS = ("subject_id", "case_id", "received_at")
_HINT = "The first row names the columns: subject_id and, if you like, case_id and received_at."


def read_people(path: Path) -> list[dict[str, str]]:
    """Return the rows as parts of orders. A cell that is empty is left out.

    Raises CommandError for a file that is no such table. It names the row, never what the row holds.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path} cannot be read as CSV: {type(error).__name__}.", _HINT, USAGE) from None
    if not rows:
        raise CommandError(f"{path} has no rows.", _HINT, USAGE)
    if "subject_id" not in rows[0] or not rows[0].keys() <= {*_COLUMNS, None}:
        raise CommandError(f"{path} has no column subject_id, or one of another name.", _HINT, USAGE)
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values() or not row["subject_id"].strip():
            raise CommandError(f"Row {number} of {path} has no subject_id, or too few or too many cells.", _HINT, USAGE)
    return [{name: cell.strip() for name, cell in row.items() if cell.strip()} for row in rows]
