"""What a long history costs on SQLite: an intake, an update, a tick of the scheduler, a scrape; and a person's models.

``python -m benchmarks history``. CPU seconds of this process after 1,000 and after 1,000,000 finished requests, which
are written by plain SQL; the median of several. ``BENCH_FINISHED`` names other numbers. The last row asks a membership
table of 100,000 people who is in it, by the service's own statement, without statistics.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import event, text

from benchmarks.release import delete, live, worker
from service.api.metrics import render
from service.api.traffic import Traffic
from service.infra.db import Database
from service.infra.migrate import migrate
from service.infra.pseudonyms import Pepper, subject_digest
from service.requests.suppression import matches
from tests.harness.history import fill
from workers.scheduler.run import open_scheduler

FINISHED = tuple(int(each) for each in os.environ.get("BENCH_FINISHED", "1000,1000000").split(","))
TIMES = 9
PEOPLE = 100_000
LOOKS = 200


def rows() -> Iterator[dict[str, Any]]:
    short, long = (costs(count) for count in FINISHED)
    for question, cost in long.items():
        sides = {str(FINISHED[0]): short[question], str(FINISHED[1]): cost}
        yield {
            "name": f"{question} after {FINISHED[1]:,} finished requests / after {FINISHED[0]:,}, SQLite",
            "value": statistics.median(cost) / statistics.median(short[question]),
            "target": "<= 1.2",
            "unit": "CPU ratio",
            "sides": sides,
        }
    looked = touched()
    yield {
        "name": f"who is touched by a request: one look-up among {PEOPLE:,} people, SQLite",
        "value": 1000 * statistics.median(looked),
        "target": "<= 0.05",
        "unit": "ms",
        "sides": {"seconds": looked},
    }


def costs(finished: int) -> dict[str, list[float]]:
    """CPU seconds of each question, asked ``TIMES`` times in turn."""
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=40, features=50, classes=4)
        database, busy, scheduler = process.storage.database, worker(process), open_scheduler(process.settings)
        scheduler.tick(1)
        fill(database, finished)
        found: dict[str, list[float]] = {}
        for person in range(TIMES + 1):
            subject = f"p{person}"
            asked: dict[str, Callable[[], object]] = {
                "an intake": lambda subject=subject: delete(process, subject),  # type: ignore[misc]
                "an update": lambda: busy.work(model_id),
                "a tick": lambda: scheduler.tick(1),
                "a scrape": lambda: render(database, process.settings, Traffic()),
            }
            for question, ask in asked.items():
                start = time.process_time()
                ask()
                if person:  # the first one of each is not counted
                    found.setdefault(question, []).append(time.process_time() - start)
        process.storage.close()
        scheduler.database.close()
    return found


def touched() -> list[float]:
    """Wall-clock seconds that SQLite takes for one look-up of a person, in the service's words."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/people.db")
        migrate(database)
        pepper = Pepper.of(b"benchmark" * 4)
        people = [subject_digest(pepper, "default", f"p{index}") for index in range(PEOPLE)]
        insert = text(
            "INSERT INTO memberships (generation_id, subject_digest, position, sample_digest, content_digest, holder)"
            " VALUES (1, :person, :place, :person, :person, :person)"
        )
        with database.write() as session:
            session.execute(insert, [{"person": person, "place": place} for place, person in enumerate(people)])
        said: list[tuple[str, Any]] = []
        event.listen(database.engine, "before_cursor_execute", lambda *given: said.append((given[2], given[3])))
        found = []
        with database.read() as session:
            for person in people[:: PEOPLE // LOOKS]:
                matches(session, 1, person, ())
                raw: Any = session.connection().connection.driver_connection
                statement, parameters = said[-1]
                start = time.perf_counter()
                raw.execute(statement, parameters).fetchall()
                found.append(time.perf_counter() - start)
        database.close()
    return found
