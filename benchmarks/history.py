"""What a long history, many models and many people cost on SQLite: an intake, an update, a scrape, pages, a search.

``python -m benchmarks history``. CPU seconds after 1,000 to 1,000,000 finished requests, which are written by plain
SQL; the median of several. ``BENCH_FINISHED`` names other numbers. Then the pages of a person who is in every model,
for 1 to 1,000 models (``BENCH_MODELS``), and an intake and a search where a model has 1,000 to 1,000,000 people
(``BENCH_PEOPLE``). A row compares the most with the fewest; ``sides`` has what lies between.
``python -m benchmarks.growth`` draws them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks.crowd import cpu
from benchmarks.release import delete, live, worker
from expunge_service.access import Scope
from expunge_service.api.dependencies import Service
from expunge_service.api.traffic import Traffic
from expunge_service.api.views.metrics import render
from expunge_service.api.views.requests import request_view, request_views
from expunge_service.api.views.selection import MOST_COUNTED, ListFilter, count, newest, page_of
from expunge_service.app import create_app
from expunge_service.infra.db import Database, now
from expunge_service.infra.settings import Settings
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_service.requests import Order, find_person
from expunge_service.requests.intake import accept
from expunge_workers.scheduler.run import open_scheduler
from tests.harness.databases import sqlite_template
from tests.harness.history import DIGEST, ROWS, fill
from tests.service.worlds import live_model
from tests.workers.worlds import World

FINISHED = tuple(map(int, os.environ.get("BENCH_FINISHED", "1000,10000,100000,1000000").split(",")))
MODELS = tuple(map(int, os.environ.get("BENCH_MODELS", "1,10,100,1000").split(",")))
PEOPLE = tuple(map(int, os.environ.get("BENCH_PEOPLE", "1000,10000,100000,1000000").split(",")))
TIMES = 9
READER = frozenset(Scope)
Questions = dict[str, Callable[[int], object]]
"""by what is asked, the call that asks it for the n-th time"""
OTHER_PEOPLE = {
    "memberships": f"""(generation_id, position, subject_digest, sample_digest, content_digest, holder)
        SELECT :generation, 1000 + x, {DIGEST}, {DIGEST}, {DIGEST}, {DIGEST}""",
    "spellings": "(form, generation_id, person) SELECT x * 9000000000000, :generation, x",
}
"""a row for each person, as plain SQL writes it"""


def rows() -> Iterator[dict[str, Any]]:
    yield from ratios("after {} finished requests / after {}", "<= 1.2", in_turn(FINISHED, after))
    yield from ratios("in {} models / in {}", "<= 3", in_turn(MODELS, in_models))
    yield from ratios("among {} people / among {}", "<= 1.2", in_turn(PEOPLE, among))


def ratios(what: str, target: str, costs: dict[int, dict[str, list[float]]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each question: its CPU at the greatest number over that at the smallest."""
    few, many = min(costs), max(costs)
    for question, cost in costs[many].items():
        yield {
            "name": f"{question} {what.format(f'{many:,}', f'{few:,}')}, SQLite",
            "value": statistics.median(cost) / statistics.median(costs[few][question]),
            "target": target,
            "unit": "CPU ratio",
            "sides": {str(count): asked[question] for count, asked in costs.items()},
        }


def in_turn(
    counts: Sequence[int], world: Callable[[int], AbstractContextManager[Questions]]
) -> dict[int, dict[str, list[float]]]:
    """CPU seconds of each question by the number of what there is: the worlds take turns, ``TIMES`` times."""
    costs: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    with ExitStack() as opened:
        asked = {count: opened.enter_context(world(count)) for count in counts}
        for turn in range(TIMES + 1):
            for count, questions in asked.items():
                for question, ask in questions.items():
                    seconds = (cpu if question == "an update" else own_cpu)(partial(ask, turn))
                    if turn:  # the first one of each is not counted
                        costs[count].setdefault(question, []).append(seconds)
    return costs


@contextmanager
def after(finished: int) -> Iterator[Questions]:
    """Yield what a service with so many finished requests is asked, and does, about one more."""
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=40, features=50, classes=4)
        database, busy, scheduler = process.storage.database, worker(process), open_scheduler(process.settings)
        scheduler.tick(1)
        fill(database, process.storage.guard.witness, finished)
        World(process).commit_anew(model_id, drafted_as=1)
        yield {
            "an intake": lambda turn: delete(process, f"p{turn}"),
            "an update": lambda _: busy.work(model_id),
            "a tick": lambda _: scheduler.tick(1),
            "a scrape": lambda _: render(database, process.settings, Traffic(), differs=False),
            "the page of a request": lambda _: page_of_newest(database),
            "a page of the list": lambda _: page_of_list(database),
        }
        process.storage.close()
        scheduler.database.close()


@contextmanager
def in_models(models: int) -> Iterator[Questions]:
    """Yield the pages about a person who waits in as many models."""
    with opened_service() as service:
        for number in range(models):
            live_model(service, f"m{number}", {"ada": [f"ada-{number}"], "bob": [f"bob-{number}"]})
        take_in(service, "ada")
        database = service.database
        yield {
            "the page of a request": lambda _: page_of_newest(database),
            "a page of the list": lambda _: page_of_list(database),
        }


@contextmanager
def among(people: int) -> Iterator[Questions]:
    """Yield what is asked about some people of a model that has as many others, written by plain SQL."""
    with opened_service() as service:
        model = live_model(service, "m", {f"p{number}": [f"of-{number}"] for number in range(TIMES + 1)})
        with service.database.write() as session:
            for table, rows in OTHER_PEOPLE.items():
                values = {"many": people, "generation": model.generation_id}
                session.execute(text(f"{ROWS} INSERT INTO {table} {rows} FROM count"), values)
        yield {
            "an intake": lambda turn: take_in(service, f"p{turn}"),
            "a search": lambda turn: search(service, f"p{turn}"),
        }


@contextmanager
def opened_service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{sqlite_template(Path(folder))}"
        service: Service = create_app(Settings(home=Path(folder), database_url=url)).state.service
        yield service
        service.database.close()


def take_in(service: Service, person: str) -> None:
    with service.database.write() as session:
        accept(session, service.pepper, DEFAULT_TENANT, Order(subject_id=person))


def search(service: Service, person: str) -> object:
    with service.database.read() as session:
        return find_person(session, service.pepper, DEFAULT_TENANT, person)


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
