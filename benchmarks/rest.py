"""CPU seconds of what a service does while nobody asks it for a deletion, each over a slow twin in the same run.

And how often its processes read the store, to notice that a database was put back.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from sqlalchemy import False_, insert, update

from benchmarks.release import live
from expunge_service.api.dependencies import Service
from expunge_service.api.traffic import Traffic
from expunge_service.api.views.metrics import render
from expunge_service.app import create_app
from expunge_service.infra.db import Database
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Consumer, Generation, Model, Record, Version
from expunge_service.models import unconfirmed
from expunge_workers.scheduler.run import carry_out, hold_lease, open_scheduler
from tests.harness.databases import sqlite_template
from tests.harness.store_reads import reads_a_second
from tests.service.worlds import live_model
from tests.unlearning.accounting.test_gaussian import epsilon_by_halving
from unlearning.accounting.budget import UNITS, epsilon_at, mu_of

Row = dict[str, Any]
MODELS = 270
READ_MODELS, READ_PROCESSES, READ_SECONDS = 30, 3, 10.0


def rows() -> Iterator[Row]:
    yield epsilon()
    yield scrape()
    yield tick()
    yield store_reads()


def epsilon() -> Row:
    """Fifty values of mu, none of which was asked for before."""
    asked = [0.01 * count for count in range(1, 51)]
    fast = cpu(lambda: [epsilon_at(mu, 1e-5) for mu in asked])
    slow = cpu(lambda: [epsilon_by_halving(mu, 1e-5) for mu in asked])
    return row("epsilon of a mu: steps from above / halving", fast, slow, 0.2)


def scrape() -> Row:
    """Of models whose budgets have all moved since the last scrape, each with a consumer."""
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=40, features=50, classes=4)
        database, settings = process.storage.database, process.settings
        copy_model(database, model_id)

        def of_all(of_a_mu: Callable[[float, float], float]) -> float:
            with database.write() as session:
                session.execute(update(Generation).values(spent=Generation.spent + 10**9))

            def of_spent(spent: int, delta: float) -> float:
                return of_a_mu(mu_of(spent), delta)

            with patch("expunge_service.api.views.models.epsilon_of", of_spent):
                return cpu(lambda: render(database, settings, Traffic(), differs=False))

        of_all(epsilon_at)  # warms SQLAlchemy up
        slow, fast = of_all(epsilon_by_halving), of_all(epsilon_at)
        process.storage.close()
    return row(f"a scrape of {MODELS} models whose budgets moved / with halving", fast, slow, 0.2)


def tick() -> Row:
    """An idle second of the scheduler, against one in which every duty of a second looks for itself, as it once did.

    The medians of several. The duties of a minute, which search the stores, are on neither side.
    """
    with tempfile.TemporaryDirectory() as folder:
        process, _ = live(Path(folder), people=40, features=50, classes=4)
        scheduler = open_scheduler(process.settings)
        duties = [duty.do for duty in scheduler.duties if duty.every == 1 and not isinstance(duty.due, False_)]

        def unasked() -> None:
            with scheduler.database.read() as session:
                unconfirmed(session)
            hold_lease(scheduler.database, scheduler.owner, scheduler.lease_seconds)
            scheduler.guard.look()
            carry_out(duties)

        for _ in range(3):
            scheduler.tick()
            unasked()
        slow = median(cpu(unasked) for _ in range(30))
        fast = median(cpu(lambda: scheduler.tick(1)) for _ in range(30))
        process.storage.close()
        scheduler.database.close()
    return row("an idle tick / one in which every duty looks for itself, SQLite", fast, slow, 1 / 15)


def store_reads() -> Row:
    """Of processes of the API that answer calls without a pause: each compares store and database once a second."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        service: Service = create_app(
            Settings(home=home, database_url=f"sqlite:///{sqlite_template(home)}")
        ).state.service
        for number in range(READ_MODELS):
            live_model(service, f"m{number}")
        service.database.close()
        reads = reads_a_second(service.settings, READ_PROCESSES, READ_SECONDS)
    name = f"store reads of the witness a second, {READ_MODELS} models, {READ_PROCESSES} processes"
    return {"name": name, "value": reads, "target": f"<= {READ_PROCESSES}", "unit": "reads/s"} | {
        "met": reads <= READ_PROCESSES,
        "sides": {"seconds": READ_SECONDS},
    }


def copy_model(database: Database, model_id: str) -> None:
    """Add models like this one, by plain rows."""

    def like(row: Record, **changes: Any) -> dict[str, Any]:
        return {column.name: getattr(row, column.key) for column in row.__table__.columns} | changes

    with database.write() as session:
        model = session.get_one(Model, model_id)
        generation, version = (
            session.get_one(Generation, model.generation_id),
            session.get_one(Version, model.current_id),
        )
        for number in range(1000, 1000 + MODELS):
            theirs = {"model_id": f"{number:032x}"}
            named = {
                "id": theirs["model_id"],
                "name": f"m{number}",
                "generation_id": number,
                "current_id": f"{number:032x}",
            }
            session.execute(insert(Model).values(like(model, **named)))
            budget = {"budget": UNITS, "spent": number, "epsilon": 1.0, "delta": 1e-5}
            session.execute(insert(Generation).values(like(generation, id=number, **theirs, **budget)))
            session.execute(insert(Version).values(like(version, id=f"{number:032x}", generation_id=number, **theirs)))
            consumer = {"name": "web", "tenant_id": model.tenant_id, "version_id": f"{number:032x}", "seen_at": 1}
            session.execute(insert(Consumer).values(**theirs, **consumer))


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def row(name: str, fast: float, slow: float, target: float) -> Row:
    value, sides = fast / slow, {"fast": fast, "slow": slow}
    return {"name": name, "value": value, "target": f"<= {target:g}", "unit": "CPU ratio", "sides": sides} | {
        "met": value <= target
    }
