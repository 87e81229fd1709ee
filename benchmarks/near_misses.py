"""What the comparison of misspelled ids costs, and whether a key that may only write can time it.

``python -m benchmarks near_misses``; ``BENCH_PEOPLE`` sets the number of people (a million). The ids are of
five shapes, a fifth each. A registration's seconds are the worker's and PostgreSQL's CPU, scaled to a million people.
A request's time is that of the numbers of its forms and looks; four statements come with it. Bytes are those of the
table with its index, as the rows are after a registration.

The times of an intake are those of ``POST /v1/deletion-requests`` with a key that may only write, over ids that
somebody is near, that somebody has, and that nobody has. They take turns, and no person is named twice.
"""

from __future__ import annotations

import os
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from benchmarks.many_people import cpu_of
from expunge_service.access import Scope, create_key
from expunge_service.app import create_app
from expunge_service.infra.pseudonyms import Pepper, subject_digest
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Spelling
from expunge_service.requests import Written
from expunge_workers.storage.spellings import Spellings, write
from tests.harness import databases, servers, spoiled_ids
from tests.service.worlds import live_model

PEOPLE = int(os.environ.get("BENCH_PEOPLE", "1000000"))
ON_SQLITE = 100_000
"""people that SQLite serves at most"""
MOST_SECONDS, MOST_BYTES, MOST_MICROSECONDS = 20.0, 250.0, 100.0
A_MILLION, SECONDS = "forms of a million people", "CPU s"
ASKED = 2_000
TIMED, WARM = 300, 20
"""requests of each kind whose time counts, and those before them"""
KINDS = ("near", "exact", "unknown")
Row = dict[str, Any]


def rows() -> Iterator[Row]:
    shapes: dict[str, float] = {}
    for shape in spoiled_ids.SHAPES:
        for each in cost_of(shape, spoiled_ids.people(shape, PEOPLE // len(spoiled_ids.SHAPES), 1)):
            shapes |= {shape: each["value"]} if each["unit"] == SECONDS else {}
            yield each
    yield row(
        f"{A_MILLION} of the five shapes: a registration",
        statistics.mean(shapes.values()),
        MOST_SECONDS,
        SECONDS,
        shapes,
    )
    for kind in ("SQLite", "PostgreSQL"):
        yield from told_apart(kind)


def cost_of(shape: str, ids: list[str]) -> Iterator[Row]:
    """Yield what a registration of these people costs, and a request where they are."""
    pepper = Pepper.of(bytes(32))
    people = {subject: subject_digest(pepper, "default", subject) for subject in ids}
    start = time.process_time()
    written = Spellings.of(pepper, "default", people)
    spent = {"forms": time.process_time() - start}
    with servers.postgres() as server, server.database() as url:
        engine, start = create_engine(url), time.process_time()
        before = cpu_of(server.process.process.pid)  # type: ignore[union-attr]
        size = on_postgresql(engine, written)
        spent["writing"] = time.process_time() - start
        spent["PostgreSQL"] = cpu_of(server.process.process.pid) - before  # type: ignore[union-attr]
        engine.dispose()
    sides = {name: seconds * 1e6 / len(ids) for name, seconds in spent.items()}
    yield row(f"{A_MILLION}, {shape}: a registration", sum(sides.values()), MOST_SECONDS, SECONDS, sides)
    yield row(f"forms, {shape}: on PostgreSQL", size / len(ids), MOST_BYTES, "bytes a person")
    some = Spellings.of(pepper, "default", dict(list(people.items())[:ON_SQLITE]))
    with tempfile.TemporaryDirectory() as folder:
        size = on_sqlite(Path(folder) / "spellings.db", some)
    yield row(f"forms, {shape}: on SQLite", size / min(ON_SQLITE, len(ids)), None, "bytes a person")
    asked = [each.text for each in spoiled_ids.spoiled(ids, 2, ASKED)]
    start = time.process_time()
    for each in asked:
        Written.of(pepper, "default", each)
    taken = (time.process_time() - start) * 1e6 / ASKED
    yield row(f"forms, {shape}: of a request", taken, MOST_MICROSECONDS, "CPU microseconds")


def on_postgresql(engine: Engine, written: Spellings) -> int:
    """Write the rows as a registration does; return the bytes of the partition and its index."""
    table: Any = Spelling.__table__
    table.dialect_options["postgresql"]["partition_by"] = "LIST (generation_id)"
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(text("CREATE TABLE spellings_1 PARTITION OF spellings FOR VALUES IN (1)"))
    for part in written.parts():
        with Session(engine) as session, session.begin():
            write(session, 1, part)
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT pg_total_relation_size('spellings_1')")).scalar_one())


def on_sqlite(file: Path, written: Spellings) -> int:
    """Write the rows as a registration does; return by how many bytes the file grows."""
    engine = create_engine(f"sqlite:///{file}")
    table: Any = Spelling.__table__
    table.create(engine)
    before = file.stat().st_size
    for part in written.parts():
        with Session(engine) as session, session.begin():
            write(session, 1, part)
    engine.dispose()
    return file.stat().st_size - before


def told_apart(kind: str) -> Iterator[Row]:
    """Yield by how much the time of an id that somebody is near differs from that of one that nobody has."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        if kind == "SQLite":
            url = databases.sqlite_databases(databases.sqlite_template(folder))(folder)
        else:
            server = running.enter_context(servers.postgres(fsync="on"))
            url = running.enter_context(databases.postgres_databases(server))(folder)
        running.enter_context(redirect_stderr(running.enter_context(Path(os.devnull).open("w"))))  # its log
        app = create_app(Settings(home=folder / "home", database_url=url, recipes=folder, rate=1e6))
        with TestClient(app) as client:
            milliseconds = intakes(client)
    median = {name: statistics.median(times) for name, times in milliseconds.items()}
    near, exact = (abs(median[name] - median["unknown"]) for name in ("near", "exact"))
    sides = {f"{name}, median ms": value for name, value in median.items()} | {
        "near - unknown, ms": median["near"] - median["unknown"],
        "exact - unknown, ms": median["exact"] - median["unknown"],
    }
    name = f"an intake's time, {kind}: near from unknown / exact from unknown"
    yield row(name, near / exact, 1.0, "ratio of differences", sides)


def intakes(client: TestClient) -> dict[str, list[float]]:
    """Return the milliseconds of each answer, by the kind of id. Raises HTTPStatusError."""
    service = client.app.state.service  # type: ignore[attr-defined]
    members = spoiled_ids.people("padded", 2 * (TIMED + WARM), 3)
    nobody = spoiled_ids.strangers("padded", members, TIMED + WARM, 4)
    live_model(service, people={subject: [f"s{subject}"] for subject in members})
    with service.database.write() as session:
        key = create_key(session, service.pepper, label="bench", scopes=[Scope.DELETIONS_WRITE]).secret
    door = {"Authorization": f"Bearer {key}"}
    zeros = random.Random(5)
    misspelled = [f"{'0' * zeros.randint(1, 3)}{subject}" for subject in members[: TIMED + WARM]]
    asked = dict(zip(KINDS, (misspelled, members[TIMED + WARM :], nobody), strict=True))
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(TIMED + WARM):
        for place in range(len(KINDS)):
            kind = KINDS[(turn + place) % len(KINDS)]
            body, headers = {"subject_id": asked[kind][turn]}, door | {"Idempotency-Key": secrets.token_hex(8)}
            start = time.perf_counter()
            answer = client.post("/v1/deletion-requests", json=body, headers=headers)
            if turn >= WARM:
                taken[kind].append((time.perf_counter() - start) * 1000)
            answer.raise_for_status()
    return taken


def row(name: str, value: float, most: float | None, unit: str, sides: dict[str, float] | None = None) -> Row:
    met = None if most is None else value <= most
    target = "reported" if most is None else f"<= {most:g}"
    given = {"people": PEOPLE} if sides is None else sides
    return {"name": name, "value": value, "target": target, "unit": unit, "met": met, "sides": given}
