"""What registration measured on all people: kept in a file, never in the database, and deleted with the first deletion.

A figure like lambda_max can reveal whether one person was in the data. A row that is overwritten stays in PostgreSQL's
heap and write-ahead log for long, so the figures are in a file next to the checkpoints, one for each generation. The
row holds only what follows from settings and counts, and whether the file may still be shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import Database
from expunge_service.infra.files import Folder
from expunge_service.infra.tables import Generation
from expunge_service.models.budgets import USAGE

FIGURES = "figures"
"""in the store, next to the checkpoints"""
DATA_FREE = frozenset(
    {
        "attempts",
        "chosen",
        "dimension",
        "eta_seconds",
        "expected_repeats",
        "form",
        "kept_out",
        "metric",
        "mode",
        "ported",
        "rank",
        "reason",
        "reference",
        "refused",
        "seconds",
        "switched",
        "trial",
        "work_seconds",
        "warnings",
    }
)
"""what a report tells that follows from settings and counts; every other name in it is a measured figure"""
DELETED = "deleted with the first deletion: they were measured on everyone"


class Figures:
    """The folder of measured figures, one JSON file for each generation. It is in the folder of the store."""

    def __init__(self, store: Folder) -> None:
        self._folder = store.inside(FIGURES)

    def keep(self, generation_id: int, report: Mapping[str, Any]) -> dict[str, Any]:
        """Write the report's figures durably, with those kept before; return what the row may hold of the report."""
        measured = {name: value for name, value in report.items() if name not in DATA_FREE | {FIGURES}}
        measured = self._read(generation_id) | measured
        self._folder.write(_name(generation_id), [json.dumps(measured).encode()])
        return {name: value for name, value in report.items() if name in DATA_FREE} | {FIGURES: True}

    def shown(self, generation: Generation) -> dict[str, Any] | None:
        """Return the generation's report, with its figures until the first deletion. None: there is no report yet."""
        if generation.report is None:
            return None
        report = {name: value for name, value in generation.report.items() if name != USAGE}
        if report.get(FIGURES) is not True:
            return report
        return {name: value for name, value in report.items() if name != FIGURES} | self._read(generation.id)

    def measured(self, generation_id: int) -> dict[str, Any]:
        """Return the figures that are kept of a generation which is prepared."""
        return self._read(generation_id)

    def delete(self, generation_id: int) -> None:
        """Delete the generation's file, if there is one; durable when this returns."""
        self._folder.delete([_name(generation_id)])

    def generations(self) -> set[int]:
        """Return the generations that have a file. Raises OSError."""
        names = (PurePath(entry.name) for entry in self._folder.entries())
        return {int(name.stem) for name in names if name.suffix == ".json"}

    def sweep(self, database: Database) -> int:
        """Delete every file that its generation may not show any more; return how many."""
        kept = self.generations()
        if not kept:
            return 0
        with database.read() as session:
            rows = session.execute(
                select(Generation.id, Generation.status, Generation.report).where(Generation.id.in_(sorted(kept)))
            )
            needed = {key for key, status, report in rows if _needed(status, report)}
        gone = sorted(kept - needed)
        for generation_id in gone:
            self.delete(generation_id)
        return len(gone)

    def _read(self, generation_id: int) -> dict[str, Any]:
        with suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads(self._folder.read(_name(generation_id)))
            return found
        return {}


def _name(generation_id: int) -> str:
    return f"{generation_id:d}.json"


def withdraw(session: Session, *generations: ColumnElement[bool]) -> None:
    """Show no figure of these generations from this transaction on; the files are deleted once it is committed."""
    for generation_id, report in session.execute(select(Generation.id, Generation.report).where(*generations)):
        if (report or {}).get(FIGURES) is True:
            shown = session.get_one(Generation, generation_id)
            shown.report = (report or {}) | {FIGURES: DELETED}


def _needed(status: str, report: Mapping[str, Any] | None) -> bool:
    return status in ("preparing", "candidate") or (status == "live" and (report or {}).get(FIGURES) is True)
