"""Accepting a request for a person who is in 1, 20 and 270 models, on SQLite and PostgreSQL.

``python -m benchmarks accept``. CPU seconds of this process (and of the server) for one transaction and its commit,
over those at one model; statements are counted beside it. The numbers of models take turns in one database each.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import event, insert

from benchmarks.many_people import cpu_of
from expunge_service.infra.db import Database, now
from expunge_service.infra.migrate import migrate
from expunge_service.infra.pseudonyms import Pepper, new_id, subject_digest
from expunge_service.infra.tables import Generation, Membership, Model
from expunge_service.models.generations import open_generation
from expunge_service.requests import Order, Windows, accept
from tests.harness import servers

MODELS, TIMES, PEOPLE = (1, 20, 270), 30, 100
PEPPER, WINDOWS = Pepper.of(b"p" * 32), Windows(large_samples=1000)
TARGETS = {("SQLite", 20): 1.5, ("PostgreSQL", 20): 1.5, ("SQLite", 270): 8.0, ("PostgreSQL", 270): 5.5}


def rows() -> Iterator[dict[str, Any]]:
    for kind in ("SQLite", "PostgreSQL"):
        with ExitStack() as running:
            home = Path(running.enter_context(tempfile.TemporaryDirectory()))
            server, url = 0, f"sqlite:///{home / 'accept.db'}"
            if kind == "PostgreSQL":
                started = running.enter_context(servers.postgres(fsync="on"))
                server, url = started.process.process.pid, running.enter_context(started.database())  # type: ignore[union-attr]
            yield from rows_of(kind, costs(url, server))


def rows_of(kind: str, sides: dict[int, dict[str, list[float]]]) -> Iterator[dict[str, Any]]:
    one = statistics.median(sides[1]["cpu_ms"])
    for models, side in sides.items():
        name = f"accepting a person in {models} model{'s' if models > 1 else ''}, {kind}"
        shown = {"sides": {"one": medians(sides[1]), "many": medians(side)}}
        statements = max(side["statements"])
        yield (
            {"name": f"{name}: statements", "value": statements, "target": "<= 8", "unit": ""}
            | shown
            | {"met": statements <= 8}
        )
        if models > 1:
            value, target = statistics.median(side["cpu_ms"]) / one, TARGETS[kind, models]
            met = {"target": f"<= {target:g}", "met": value <= target}
            yield {"name": f"{name} / in one", "value": value, "unit": "CPU ratio", **met} | shown


def medians(side: dict[str, list[float]]) -> dict[str, float]:
    return {each: statistics.median(values) for each, values in side.items()}


def costs(url: str, server: int) -> dict[int, dict[str, list[float]]]:
    """Return CPU milliseconds here and in the server, and the statements, of each order by its number of models."""
    migrate(Database(url))
    opened = Database(url)
    for count in MODELS:
        for number in range(count):
            add_model(opened, f"t{count}", number)
    sent: list[str] = []
    event.listen(opened.engine, "before_cursor_execute", lambda _c, _k, text, *_: sent.append(text))
    found = {count: dict[str, list[float]](cpu_ms=[], server_ms=[], statements=[]) for count in MODELS}
    for turn in range(TIMES + 5):
        for count, side in found.items():
            began, theirs = time.process_time(), cpu_of(server)
            with opened.write() as session:
                sent.clear()  # BEGIN
                accept(session, PEPPER, f"t{count}", Order(subject_id=f"p{turn % PEOPLE}"), WINDOWS)
            if turn >= 5:  # the first compile the statements, and are prepared by the server
                side["cpu_ms"].append(1000 * (time.process_time() - began))
                side["server_ms"].append(1000 * (cpu_of(server) - theirs))
                side["statements"].append(len([text for text in sent if not text.startswith("BEGIN")]))
    opened.close()
    return found


def add_model(opened: Database, tenant: str, number: int) -> None:
    """Add a live model of ``PEOPLE`` people to a tenant, as registration would leave it."""
    with opened.write() as session:
        model = Model(id=new_id(), tenant_id=tenant, name=f"m{number}", status="live", recipe="r", policy={})
        model.created_at, model.notified_at = now(session), 1
        session.add(model)
        session.flush()
        generation = Generation(tenant_id=tenant, model_id=model.id, status="live", method="newton", guarantee="proved")
        generation.created_at = now(session)
        model.generation_id = open_generation(session, generation).id
        people = [subject_digest(PEPPER, tenant, f"p{person}") for person in range(PEOPLE)]
        members = [
            {
                "generation_id": model.generation_id,
                "subject_digest": person,
                "position": position,
                "sample_digest": f"{position:064x}",
                "content_digest": "0" * 64,
                "holder": person,
            }
            for position, person in enumerate(people)
        ]
        session.execute(insert(Membership), members)
