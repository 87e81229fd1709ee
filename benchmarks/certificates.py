"""How long certificates take after a storm: requests that were completed at once, with synced commits.

``python -m benchmarks certificates``; ``BENCH_REQUESTS`` says how many requests (2,000). On PostgreSQL, and on SQLite,
where everybody else who writes waits for the longest transaction.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from expunge_service.audit import Signer
from expunge_service.certificates import issue_due
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from expunge_service.infra.tables import Certificate, Task
from expunge_workers.scheduler.run import extend_log
from tests.faults.crowd import copy_recipes
from tests.harness.servers import postgres
from tests.workers.worlds import World, open_world, settings_of

REQUESTS = int(os.environ.get("BENCH_REQUESTS", "2000"))


class Timed(Database):
    """Notes the seconds of each transaction that writes, from before its begin to after its commit."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seconds: list[float] = []

    @contextmanager
    def write(self) -> Iterator[Session]:
        start = time.perf_counter()
        with super().write() as session:
            yield session
        self.seconds.append(time.perf_counter() - start)


def rows() -> Iterator[dict[str, Any]]:
    with postgres(fsync="on") as server, server.database() as url:
        yield from measured(url, "PostgreSQL")
    with tempfile.TemporaryDirectory(prefix="expunge-bench-") as folder:
        yield from measured(f"sqlite:///{folder}/expunge.db", "SQLite")


def measured(url: str, kind: str) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="expunge-bench-") as folder:
        migrate(Database(url))
        world = open_world(
            settings_of(Path(folder) / "home", url, copy_recipes(Path(folder) / "drill", REQUESTS + 200))
        )
        storm(world)
        sides = issue(world)
        world.storage.close()
    each, longest = 1000 * sides["cpu"] / sides["certificates"], 1000 * sides["longest_transaction"]
    name = f"certificates after {REQUESTS:,} requests, {kind}"
    yield {"name": name, "value": each, "target": "<= 1", "unit": "CPU ms each", "met": each <= 1.0, "sides": sides}
    hold = {"name": f"{name}: longest transaction that writes", "value": longest, "target": "<= 50", "unit": "ms"}
    yield hold | {"met": longest <= 50.0, "sides": sides}


def storm(world: World) -> None:
    """Carry out all requests."""
    model_id = world.live("crowd", "newton", guarantee="proved")
    for index in range(REQUESTS):
        world.delete(f"crowd-person-{index}")
    waiting = select(Task.id).where(Task.status.in_(("queued", "running"))).limit(1)
    while True:
        with world.database.read() as session:
            if session.scalar(waiting) is None:
                return
        world.work(model_id)


def issue(world: World) -> dict[str, Any]:
    """Do the scheduler's duty until every certificate is issued; return what that duty alone took.

    Seconds, statements and calls; of the transactions that write: how many, and seconds of the longest and the middle
    one.
    """
    signer, statements, database = Signer.of(world.settings), [0], Timed(world.settings.database_url)
    while extend_log(world.database, signer, world.storage.guard.witness):
        pass
    event.listen(database.engine, "before_cursor_execute", lambda *_: statements.append(0))
    calls, issued, start, cpu = 0, 0, time.perf_counter(), time.process_time()
    while made := issue_due(database, signer, world.storage.pepper):
        calls, issued = calls + 1, issued + made
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    database.close()
    if issued != world.count(Certificate):
        raise RuntimeError(f"{issued} of {world.count(Certificate)} certificates were issued")
    each = round((len(statements) - 1) / issued, 1)
    found = {"certificates": issued, "calls": calls, "seconds": seconds, "cpu": cpu, "statements_each": each}
    wrote = sorted(database.seconds)
    middle = wrote[len(wrote) // 2]
    return found | {"transactions": len(wrote), "longest_transaction": wrote[-1], "middle_transaction": middle}
