"""A long history on SQLite: finished requests by plain SQL, and how much the database works for a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event, text

from expunge_service.audit.witness import DRAFT, Witness, version_file
from expunge_service.infra.db import Database
from expunge_service.models.counters import tally

A_VERSION = 20
"""finished requests for each version"""
ROWS = "WITH RECURSIVE count(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM count WHERE x + 1 < :many) "
ID = "printf('%s%030x', '{}', x)"
MODEL = "(SELECT id FROM models)"
GENERATION = "(SELECT generation_id FROM models)"
DIGEST = "printf('%064x', x)"
REQUESTS = {
    "deletion_requests": f"""(id, tenant_id, subject_digest, status, salt, received_at, due_at, created_at,
            completed_at)
        SELECT {ID.format("aa")}, 'default', {DIGEST}, 'completed', x'00', 1000 + x, 9000 + x, 1000 + x, 2000000 + x""",
    "tasks": f"""(id, tenant_id, request_id, model_id, status, samples, method, version_id, attempts, not_before,
            created_at, completed_at)
        SELECT {ID.format("bb")}, 'default', {ID.format("aa")}, {MODEL}, 'completed', 1, 'recollection',
            printf('cc%030x', x / {A_VERSION}), 1, 1000 + x, 1000 + x, 2000000 + x""",
    "suppressions": f"""(id, tenant_id, request_id, subject_digest, created_at)
        SELECT {ID.format("dd")}, 'default', {ID.format("aa")}, {DIGEST}, 1000 + x""",
    "certificates": f"""(request_id, completed_at, tenant_id, envelope, issued_at)
        SELECT {ID.format("aa")}, 2000000 + x, 'default', '{{}}', 3000000 + x""",
    "erasures": f"""(tenant_id, generation_id, version_id, key_id, created_at, destroyed_at)
        SELECT 'default', {GENERATION}, printf('cc%030x', x / {A_VERSION}), {ID.format("ee")}, 1000 + x, 2000 + x""",
    "audit_entries": f"""(tenant_id, log_index, leaf_hash, kind, request_id, body, created_at)
        SELECT 'default', 1000000 + x, {DIGEST}, CASE x % 2 WHEN 0 THEN 'request.accepted' ELSE 'request.completed' END,
            {ID.format("aa")}, '{{}}', 1000 + x""",
    "idempotency_keys": f"""(tenant_id, actor_id, key, body_digest, status_code, headers, answer, expires_at)
        SELECT 'default', 'k', {ID.format("ff")}, {DIGEST}, 202, '{{}}', '{{}}', 9000000000000000""",
}
"""a row for each request; none in ``forgotten``, which a generation has for each of its samples that left at most"""
VERSIONS = {
    "versions": f"""(id, tenant_id, model_id, generation_id, number, parent_id, status, checkpoint, size, state, method,
            claim, samples, people, published_at, retired_at, purged_at)
        SELECT {ID.format("cc")}, 'default', {MODEL}, {GENERATION}, 1 + x, {ID.format("c0")}, 'purged', {DIGEST}, 1,
            {DIGEST}, 'recollection', '{{}}', {A_VERSION}, {A_VERSION}, 1000 + x, 2000 + x, 3000 + x""",
    "budget_entries": f"""(tenant_id, generation_id, version_id, budget_cost, created_at)
        SELECT 'default', {GENERATION}, {ID.format("cc")}, 0, 1000 + x""",
}
"""a row for each version"""
PHASES = ("claim", "load", "unlearn", "store")


def fill(database: Database, witness: Witness, requests: int) -> None:
    """Add ``requests`` finished requests and their versions to the only model, as old versions of it."""
    versions = requests // A_VERSION
    with database.write() as session:
        session.execute(text("UPDATE versions SET number = number + :many"), {"many": versions})
        for tables, many in ((REQUESTS, requests), (VERSIONS, versions)):
            for table, rows in tables.items():
                session.execute(text(f"{ROWS} INSERT INTO {table} {rows} FROM count"), {"many": many})
        for phase in PHASES:
            columns = "(model_id, version_id, method, phase, seconds, created_at)"
            rows = f"SELECT {MODEL}, {ID.format('cc')}, 'recollection', '{phase}', 0.125, 1000 + x FROM count"
            session.execute(text(f"{ROWS} INSERT INTO phase_seconds {columns} {rows}"), {"many": versions})
        current = session.execute(text("SELECT model_id, number, id FROM versions WHERE status = 'current'")).one()
        witness.updates.add(version_file(current.model_id, current.number) + DRAFT, [f"{current.id}\n".encode()])
    while tally(database):
        pass


@dataclass
class Work:
    """What SQLite did: instructions of its virtual machine, in hundreds, by statement."""

    steps: Counter[str] = field(default_factory=Counter)
    statements: list[str] = field(default_factory=list)
    commits: int = 0

    @property
    def total(self) -> int:
        return sum(self.steps.values())


@contextmanager
def watched(database: Database) -> Iterator[Work]:
    """Yield the statements, commits and instructions, counted for every connection that leaves the pool meanwhile."""
    work, engine = Work(), database.engine

    def step() -> int:
        work.steps[work.statements[-1] if work.statements else ""] += 1
        return 0

    def taken(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(step, 100)

    def statement(_connection: Any, _cursor: Any, said: str, *_: Any) -> None:
        work.statements.append(said)

    def committed(_: Any) -> None:
        work.commits += 1

    heard = (("checkout", taken), ("before_cursor_execute", statement), ("commit", committed))
    for name, call in heard:
        event.listen(engine, name, call)
    try:
        yield work
    finally:
        for name, call in heard:
            event.remove(engine, name, call)
        engine.dispose()
