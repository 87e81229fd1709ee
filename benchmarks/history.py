"""What a long history and many models cost on SQLite: an intake, an update, a scrape, the pages of requests.

``python -m benchmarks history``. CPU seconds after 1,000 and after 1,000,000 finished requests, which
are written by plain SQL; the median of several. ``BENCH_FINISHED`` names other numbers. Then the pages of a person who
is in every model, for 1 and for 1,000 models (``BENCH_MODELS``).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.crowd import cpu
from benchmarks.release import delete, live, worker
from expunge.service.access import Scope
from expunge.service.api.app import create_app
from expunge.service.api.dependencies import Service
from expunge.service.api.traffic import Traffic
from expunge.service.api.views.metrics import render
from expunge.service.api.views.requests import request_view, request_views
from expunge.service.api.views.selection import MOST_COUNTED, ListFilter, count, newest, page_of
from expunge.service.infra.db import Database, now
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import DEFAULT_TENANT
from expunge.service.requests import Order
from expunge.service.requests.intake import accept
from expunge.workers.scheduler.run import open_scheduler
from tests.harness.databases import sqlite_template
from tests.harness.history import fill
from tests.service.worlds import live_model
from tests.workers.worlds import World

FINISHED = tuple(int(each) for each in os.environ.get("BENCH_FINISHED", "1000,1000000").split(","))
MODELS = tuple(int(each) for each in os.environ.get("BENCH_MODELS", "1,1000").split(","))
TIMES = 9
READER = frozenset(Scope)


def rows() -> Iterator[dict[str, Any]]:
    yield from ratios("after {} finished requests / after {}", "<= 1.2", {count: costs(count) for count in FINISHED})
    yield from ratios("in {} models / in {}", "<= 3", {count: costs_of_pages(count) for count in MODELS})


def ratios(what: str, target: str, costs: dict[int, dict[str, list[float]]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each question: its CPU at the greater number over that at the smaller one."""
    (few, short), (many, long) = costs.items()
    for question, cost in long.items():
        yield {
            "name": f"{question} {what.format(f'{many:,}', f'{few:,}')}, SQLite",
            "value": statistics.median(cost) / statistics.median(short[question]),
            "target": target,
            "unit": "CPU ratio",
            "sides": {str(few): short[question], str(many): cost},
        }


def costs(finished: int) -> dict[str, list[float]]:
    """CPU seconds of each question, asked ``TIMES`` times in turn."""
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=40, features=50, classes=4)
        database, busy, scheduler = process.storage.database, worker(process), open_scheduler(process.settings)
        scheduler.tick(1)
        fill(database, process.storage.guard.witness, finished)
        World(process).commit_anew(model_id, drafted_as=1)
        found: dict[str, list[float]] = {}
        for person in range(TIMES + 1):
            subject = f"p{person}"
            asked: dict[str, Callable[[], object]] = {
                "an intake": lambda subject=subject: delete(process, subject),  # type: ignore[misc]
                "an update": lambda: busy.work(model_id),
                "a tick": lambda: scheduler.tick(1),
                "a scrape": lambda: render(database, process.settings, Traffic(), differs=False),
                "the page of a request": lambda: page_of_newest(database),
                "a page of the list": lambda: page_of_list(database),
            }
            for question, ask in asked.items():
                seconds = cpu(ask) if question == "an update" else own_cpu(ask)
                if person:  # the first one of each is not counted
                    found.setdefault(question, []).append(seconds)
        process.storage.close()
        scheduler.database.close()
    return found


def costs_of_pages(models: int) -> dict[str, list[float]]:
    """CPU seconds of the pages about a person who waits in as many models."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = f"sqlite:///{sqlite_template(home)}"
        service: Service = create_app(Settings(home=home, database_url=url)).state.service
        database = service.database
        for number in range(models):
            live_model(service, f"m{number}", {"ada": [f"ada-{number}"], "bob": [f"bob-{number}"]})
        with database.write() as session:
            accept(session, service.pepper, DEFAULT_TENANT, Order(subject_id="ada"))
        asked = {"the page of a request": page_of_newest, "a page of the list": page_of_list}
        for ask in asked.values():
            ask(database)  # the first one is not counted
        costs = {name: [own_cpu(partial(ask, database)) for _ in range(TIMES)] for name, ask in asked.items()}
        database.close()
        return costs


def page_of_newest(database: Database) -> object:
    """Read what the API answers about the request that came last, which is open."""
    with database.read() as session:
        (request,) = newest(session, DEFAULT_TENANT, limit=1)
        return request_view(session, request, READER).model_dump_json()


def page_of_list(database: Database) -> object:
    """Read what the first page of the console's list shows."""
    chosen = ListFilter()
    with database.read() as session:
        at = now(session)
        requests = request_views(session, page_of(session, chosen, DEFAULT_TENANT, at), READER)
        return requests, count(session, chosen, DEFAULT_TENANT, at, MOST_COUNTED + 1)


def own_cpu(ask: Callable[[], object]) -> float:
    """Return the CPU seconds of this process alone: nothing else computes for it, and they are too few for ``cpu``."""
    start = time.process_time()
    ask()
    return time.process_time() - start
