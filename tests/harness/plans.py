"""SQLite has no statistics: a join that looks harmless reads a whole table. Every query of the service is looked at."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

GROWING = (
    "memberships",
    "recollections",
    "versions",
    "forgotten",
    "deletion_requests",
    "tasks",
    "suppressions",
    "certificates",
    "audit_entries",
    "tree_nodes",
    "budget_entries",
    "erasures",
    "phase_seconds",
    "webhook_deliveries",
)
"""tables with a row for each person, sample, request, version or entry"""
WHOLE = {
    "service/models:empty_generation": "a generation that ended: all of it is deleted",
    "service/api:inclusion": "a proof that is asked for by an entry's hash; certificates name indexes",
    "service/infra:migrate": "a migration, once",
    "service/models:_of_entries": "the first tally counts what was there before there were tallies",
    "service/requests:_in_force": "a training: everybody who asked is left out",
    "service/queue:suppressing": "a training, the same",
    "service/requests:names_with_requests": "a measurement draws people, of whom nobody may have asked",
    "service/requests:effective": "where a hold is in force, and in a restore: everybody who was served",
    "workers/storage:erase_ended": "models that ended in the last days, mostly none",
    "workers/storage:places": "an update that reads everybody's samples",
    "workers/storage:people": "an update that reads everybody's samples, of data that somebody left or joined",
    "workers/storage:_positions": "a preparation without a version",
    "service/models:_computed": "a preparation, an update that looks for every sample, and an audit",
    "service/queue:still_served": "a retrain under a hold",
    "service/queue:start_over": "a preparation that begins again",
    "service/queue:_positions_of": "a request by sample, where a person has one vector for all of them",
}
"""queries that may, by the room and the function that sends them, and when they do"""
ROOT = Path(__file__).parents[2]
OWN = tuple(f"{ROOT / room}/" for room in ("service", "workers", "tests"))
_PLAN = re.compile(
    rf"SCAN ({'|'.join(GROWING)})(_\d+)?\b"
    r"|SEARCH memberships(_\d+)? USING .*\(generation_id=\?\)$"
    r"|SEARCH suppressions(_\d+)? USING .*\(tenant_id=\?\)$"
)
"""also under the names that SQLAlchemy gives to aliases of a table"""
QUERIES = ("SELECT", "UPDATE", "DELETE", "WITH")
"""not INSERT: its plan has scans for foreign keys that are made where a check is deferred, and none is"""
FOUND: list[str] = []
"""a line for each time that the service or its workers sent a query that reads a whole table"""
_plans: dict[str, list[str]] = {}
"""of each text of a query the parts of its plan that read a whole table, mostly none"""


def watch() -> None:
    """Look from now on at every query of the service or its workers.

    A plan is asked for once. Every test that sends the query fails by it, from whichever function: no test passes
    because an earlier one sent the same text.
    """

    @event.listens_for(Engine, "before_cursor_execute")
    def look(connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if many or connection.dialect.name != "sqlite" or not statement.startswith(QUERIES):
            return
        whole = _plans.get(statement)
        if whole == []:
            return
        sender = _sender(sys._getframe())
        if sender is None or sender in WHOLE:
            return
        if whole is None:
            rows = connection.connection.driver_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            whole = _plans[statement] = [row[3] for row in rows if _PLAN.match(row[3])]
        FOUND.extend(f"{sender}: {part}: {statement}" for part in whole)


def _sender(frame: FrameType | None) -> str | None:
    """Return room and function of the service or the workers that sent the query; None where a test did."""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(OWN) and file != __file__ and not name.startswith("<"):
            house, _, *within = Path(file).relative_to(ROOT).parts
            return None if house == "tests" else f"{house}/{within[0]}:{name}"
        frame = frame.f_back
    return None
