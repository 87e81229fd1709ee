"""Who is touched by a request: one look-up of a person among very many, by the service's own statement.

``python -m benchmarks who_is_touched``. SQLite holds 100,000 people, without statistics, and the statement is timed in
this process. PostgreSQL holds 1,000,000 and says itself, by EXPLAIN ANALYZE, how long it took.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session

from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from expunge_service.infra.pseudonyms import Pepper, subject_digest
from expunge_service.requests.near_misses import Searched, known_exactly
from tests.harness.servers import postgres

PEPPER = Pepper.of(b"benchmark" * 4)
ON_SQLITE, ON_POSTGRESQL, LOOKS = 100_000, 1_000_000, 200
BLOCK = 2**16


def rows() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        yield touched(Database(f"sqlite:///{folder}/people.db"), "SQLite", ON_SQLITE)
    with postgres(fsync="on") as server, server.database() as url:
        yield touched(Database(url), "PostgreSQL", ON_POSTGRESQL)


def touched(database: Database, kind: str, people: int) -> dict[str, Any]:
    migrate(database)
    for start in range(0, people, BLOCK):
        add(database, range(start, min(start + BLOCK, people)))
    said: list[tuple[str, Any]] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: said.append((given[2], given[3])))
    found = []
    with database.read() as session:
        for number in range(0, people, people // LOOKS):
            assert known_exactly(session, "default", [digest(number)], [Searched("", 1, twins=False)])
            found.append(seconds_of(session, *said[-1]))
    database.close()
    return {
        "name": f"who is touched by a request: one look-up among {people:,} people, {kind}",
        "value": 1000 * statistics.median(found),
        "target": "<= 0.05",
        "unit": "ms",
        "sides": {"seconds": found},
    }


def digest(person: int) -> str:
    return subject_digest(PEPPER, "default", f"p{person}")


def add(database: Database, people: range) -> None:
    """Add one membership for each person."""
    columns = "generation_id, position, subject_digest, sample_digest, content_digest, holder"
    rows = [(1, number, *[digest(number)] * 4) for number in people]
    with database.write() as session:
        connection = session.connection()
        raw: Any = connection.connection.driver_connection
        if connection.dialect.name == "sqlite":
            raw.executemany(f"INSERT INTO memberships ({columns}) VALUES (?, ?, ?, ?, ?, ?)", rows)
            return
        part(connection)
        with raw.cursor() as cursor, cursor.copy(f"COPY memberships ({columns}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)


def part(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS memberships_1 PARTITION OF memberships FOR VALUES IN (1)"))


def seconds_of(session: Session, statement: str, parameters: Any) -> float:
    """Run the statement once more, and return how long the database takes for it."""
    raw: Any = session.connection().connection.driver_connection
    if session.get_bind().dialect.name == "sqlite":
        start = time.perf_counter()
        raw.execute(statement, parameters).fetchall()
        return time.perf_counter() - start
    (plan,) = raw.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).fetchone()
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return float(plan[0]["Execution Time"]) / 1000


if __name__ == "__main__":
    for each in rows():
        print(each, flush=True)
