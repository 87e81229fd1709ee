"""The sizing in ``results/scaling.md``, run at a fraction: people who are in 30 models, requests and certificates.

``python -m benchmarks sizing``; ``BENCH_SIZING`` says how many people (10,000: one in 1,000 of ten million), and
``BENCH_SIZING_MODELS`` how many models (30): ten million people in 2 models fit on a disk where 30 models do not.
PostgreSQL is real and synced. Small models are registered and 200 people forgotten in each of them, by the service's
own worker, and certified. Then synthetic memberships are added, one sample a person and model: a tenth of them first,
so that selection and intake are measured at two sizes. ``server``: CPU seconds of PostgreSQL; the others are those of
this process.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sqlalchemy import func, select, text

from benchmarks.certificates import issue
from benchmarks.many_people import cpu_of
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Membership, Model, Task
from expunge_service.requests import NO_WINDOWS, Named, Order, accept, reach
from expunge_service.requests.near_misses import look_up
from tests.faults.crowd import copy_recipes
from tests.harness.servers import Postgres, postgres
from tests.workers.worlds import TENANT, World, open_world, settings_of

PEOPLE = int(os.environ.get("BENCH_SIZING", "10000"))
MODELS = int(os.environ.get("BENCH_SIZING_MODELS", "30"))
FORGOTTEN, ASKED = 200, 100
REAL = 300
"""people of a registered model before synthetic ones are added"""
BLOCK = 2**14


def rows() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="expunge-bench-") as folder,
        postgres(fsync="on") as server,
        server.database() as url,
    ):
        settings = settings_of(Path(folder) / "home", url, copy_recipes(Path(folder) / "drill", REAL))
        migrate(Database(url))
        world = open_world(settings)
        forget(world)
        certificates = issue(world)  # no certificate is issued where people are added whom the versions do not know
        sides: dict[str, Any] = {"people": PEOPLE, "models": MODELS}
        for start, end in ((0, PEOPLE // 10), (PEOPLE // 10, PEOPLE)):
            add(world, start, end)
            sides[f"{end} people"] = asked(world, server, range(start, end))
        sides["bytes"] = bytes_of(world)
        world.storage.close()
    yield from reported(sides, certificates)


def reported(sides: dict[str, Any], certificates: dict[str, Any]) -> Iterator[dict[str, Any]]:
    label = f"{PEOPLE:,} people in each of {MODELS} models, PostgreSQL"
    few, many = (sides[f"{count} people"] for count in (PEOPLE // 10, PEOPLE))
    share = sides["bytes"]["bytes"] / sides["bytes"]["rows"]
    yield row(f"{label}: bytes a membership", share, "bytes", sides["bytes"])
    yield row(f"{label}: a request's selection, wall-clock", 1e3 * many["selection"], "ms", sides)
    yield row(f"{label}: the same / with a tenth of the people", many["selection"] / few["selection"], "ratio", sides)
    yield row(f"{label}: accepting a request, API", 1e3 * many["intake"], "CPU ms", sides)
    yield row(f"{label}: accepting a request, server", 1e3 * many["server"], "CPU ms", sides)
    rate = certificates["certificates"] / certificates["cpu"]
    yield row(f"{label}: certificates", rate, "per CPU s", certificates)


def row(name: str, value: float, unit: str, sides: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "value": value, "target": "reported", "unit": unit, "met": None, "sides": sides}


def forget(world: World) -> None:
    """Register all models and carry out the requests of ``FORGOTTEN`` people in each of them."""
    models = [world.live("crowd", "newton", f"m{place}", guarantee="proved") for place in range(MODELS)]
    for person in range(FORGOTTEN):
        world.delete(f"crowd-person-{person}")
    for model_id in models:
        world.work(model_id)
    with world.database.read() as session:
        left = session.scalar(select(func.count()).where(Task.status != "completed"))
    if left:
        raise RuntimeError(f"{left} tasks were not completed.")


def add(world: World, start: int, end: int) -> None:
    """Send memberships of synthetic people to every model, in the lines and columns of a registration."""
    with world.database.read() as session:
        generations = session.scalars(select(Model.generation_id)).all()
    drawn = np.random.default_rng(start)
    columns = "generation_id, subject_digest, position, sample_digest, content_digest, holder"
    for first in range(start, end, BLOCK):
        people = range(first, min(first + BLOCK, end))
        subjects = [subject_digest(world.storage.pepper, TENANT, named(person)) for person in people]
        for generation in generations:
            digests = drawn.bytes(64 * len(people)).hex()
            lines = "".join(
                f"{generation}\t{subject}\t{REAL + person}\t{digests[128 * place : 128 * place + 64]}"
                f"\t{digests[128 * place + 64 : 128 * place + 128]}\t{subject}\n"
                for place, (person, subject) in enumerate(zip(people, subjects, strict=True))
            )
            raw: Any = world.database.engine.raw_connection()
            with raw.cursor() as cursor, cursor.copy(f"COPY memberships ({columns}) FROM STDIN") as copy:
                copy.write(lines)
            raw.commit()
            raw.close()


def named(person: int) -> str:
    return f"synthetic-{person}"


def asked(world: World, server: Postgres, people: range) -> dict[str, float]:
    """Return the median seconds of a selection, and the CPU seconds of an intake, here and in the server."""
    pepper, chosen = world.storage.pepper, people[:: max(1, len(people) // (2 * ASKED))]
    seconds = []
    with world.database.read() as session:
        models = session.scalars(select(Model).order_by(Model.id)).all()
        by_generation = {model.generation_id: model.id for model in models if model.generation_id is not None}
        for person in chosen[:ASKED]:
            wanted = Named.of(pepper, TENANT, Order(subject_id=named(person)))
            start = time.perf_counter()
            matches = look_up(session, TENANT, dict.fromkeys(wanted.subjects), by_generation)
            found = reach(session, models, wanted, NO_WINDOWS, matches)
            seconds.append(time.perf_counter() - start)
            if len(found.places) != MODELS:
                raise RuntimeError(f"{len(found.places)} of {MODELS} models were selected.")
    process = server.process.process
    assert process is not None
    theirs, ours = cpu_of(process.pid), time.process_time()
    for person in chosen[ASKED : 2 * ASKED]:
        with world.database.write() as session:
            accept(session, pepper, TENANT, Order(subject_id=named(person)))
    count = len(chosen[ASKED : 2 * ASKED])
    spent = time.process_time() - ours, cpu_of(process.pid) - theirs
    return {"selection": statistics.median(seconds), "intake": spent[0] / count, "server": spent[1] / count}


def bytes_of(world: World) -> dict[str, int]:
    """Return how many memberships there are, and the bytes of their tables with their indexes."""
    sizes = text(
        "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'memberships'::regclass"
    )
    with world.database.read() as session:
        return {"rows": world.count(Membership), "bytes": int(session.execute(sizes).scalar_one())}
