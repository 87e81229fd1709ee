"""An update against its floor on SQLite, and a backlog on PostgreSQL: one worker in this process, guarantee ``none``.

The floor of an update is the bytes of one checkpoint written and synced durably, plus one committed transaction. The
update is timed from before its claim to after its commit: digest, noise, the sealed private state and every row
included, and so is the world that the recipe is called in. Both sides run alternately, so that a busy machine slows
both. What it asks of database and disk is counted.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sqlalchemy import event, func, select

import expunge_workers.update.run
from benchmarks.crowd import cpu, one_thread, write_crowd
from expunge_service.infra.db import Database, now
from expunge_service.infra.migrate import migrate
from expunge_service.infra.settings import Settings, ensure_secrets
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import Model, PhaseSeconds, Task
from expunge_service.models import register
from expunge_service.queue import Deletions, claim
from expunge_service.requests import Order, accept
from expunge_workers.app import Worker
from expunge_workers.runtime.heartbeat import HeartbeatSender, Stopwatch
from expunge_workers.runtime.process import Process
from expunge_workers.storage import checkpoint_format
from tests.harness import servers
from tests.harness.process import ANY_DISTANCE
from unlearning.accounting.policy import Policy

TENANT = "default"
RECOLLECTION = {"method": "recollection", "max_accuracy_drop": None}


def rows() -> Iterator[dict[str, Any]]:
    one_thread()
    yield floor("d = 21,840", people=40, features=2184, updates=30, target=8.0)
    yield from counted()
    yield floor("d = 11.2 million", people=10, features=1_120_000, updates=7, target=4.0)
    yield from backlog_rows()


def floor(label: str, people: int, features: int, updates: int, target: float) -> dict[str, Any]:
    """Median update over median floor, in wall-clock seconds: the wait for the disk is the point."""
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=people, features=features, classes=10)
        fast, slow = [], []
        for index in range(updates):
            delete(process, f"p{index}")
            slow.append(timed(lambda: least_bytes(Path(folder) / "floor", process.storage.database, 10 * features)))
            fast.append(timed_update(process, model_id))
        process.storage.close()
    ratio = statistics.median(fast) / statistics.median(slow)
    return {
        "name": f"update / floor, {label}",
        "value": ratio,
        "target": f"<= {target:g}",
        "unit": "ratio",
        "met": ratio <= target,
        "sides": {"release": fast, "floor": slow},
    }


def counted() -> Iterator[dict[str, Any]]:
    """Count what one update asks of database and disk, d = 21,840. A commit of SQLite is one sync of its log.

    The batch that follows a heartbeat serves every update since the last one; it is counted apart.
    """
    asked: Counter[str] = Counter()
    sync = os.fsync

    def synced(file: int) -> None:
        asked["syncs"] += 1
        sync(file)

    def during(work: Callable[[], object]) -> dict[str, int]:
        asked.clear()
        work()
        return dict(asked)

    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=40, features=2184, classes=10)
        busy = worker(process)
        delete(process, "p0")
        busy.work(model_id)  # the first compiles the statements
        busy.erase()
        delete(process, "p1")
        listened = process.storage.database.engine
        event.listen(
            listened,
            "before_cursor_execute",
            lambda *given: asked.update(["begun" if given[2].startswith("BEGIN") else "statements"]),
        )
        event.listen(listened, "commit", lambda _: asked.update(["commits", "syncs"]))
        os.fsync = synced  # type: ignore[assignment]
        update, batch = during(lambda: busy.work(model_id)), during(busy.erase)
        os.fsync = sync
        process.storage.close()
    for name, most in (("statements", 25), ("commits", 3), ("syncs", 9)):
        yield {
            "name": f"update, d = 21,840, SQLite: {name}",
            "value": update[name],
            "target": f"<= {most}",
            "unit": "",
            "met": update[name] <= most,
            "sides": {"update": update, "batch after a heartbeat": batch},
        }


BACKLOGS = (1_000, 3_000, 10_000)
DRAINS = 3
"""times that each backlog is drained; the run of median CPU time counts"""


def backlog_rows() -> Iterator[dict[str, Any]]:
    """Requests that wait for one model on PostgreSQL, drained: first claim to destroyed keys, in wall-clock seconds."""
    rates = {count: median_of([drained(count) for _ in range(DRAINS)]) for count in BACKLOGS}
    largest = rates[BACKLOGS[-1]]
    yield {
        "name": f"backlog of {BACKLOGS[-1]:,} drained, PostgreSQL",
        "value": largest["per_second"],
        "target": "reported",
        "unit": "requests/s",
        "met": None,
        "sides": largest,
    }
    costs = [1 / rates[count]["per_cpu_second"] for count in BACKLOGS]
    slope = float(np.polyfit(np.log(BACKLOGS), np.log(costs), 1)[0])
    yield {
        "name": "backlog: exponent of the cost per request against the backlog (0: does not grow)",
        "value": slope,
        "target": "<= 0.05",
        "unit": "exponent",
        "met": slope <= 0.05,
        "sides": {str(count): rate for count, rate in rates.items()},
    }


def median_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return sorted(runs, key=lambda run: run["cpu_seconds"])[len(runs) // 2]


def drained(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, servers.postgres(fsync="on") as server, server.database() as url:
        process, model_id = live(Path(folder), url, people=count + 100, features=4, classes=2)
        with process.storage.database.write() as session:
            for index in range(count):
                accept(session, process.storage.pepper, TENANT, Order(subject_id=f"p{index}"))
        began = time.perf_counter()
        seconds = cpu(lambda: worker(process).work(model_id))
        wall = time.perf_counter() - began
        with process.storage.database.read() as session:
            left = session.scalar(select(func.count()).where(Task.status != "completed"))
        process.storage.close()
    if left:
        raise RuntimeError(f"{left} of {count} tasks were not completed")
    return {
        "requests": count,
        "seconds": wall,
        "cpu_seconds": seconds,
        "per_second": count / wall,
        "per_cpu_second": count / seconds,
    }


def live(
    home: Path, database_url: str | None = None, policy: Mapping[str, Any] = RECOLLECTION, **crowd: Any
) -> tuple[Process, str]:
    """Return a process and the id of its live model ``m``, of the recipe that ``write_crowd`` makes of ``crowd``."""
    write_crowd(home, **crowd)
    process = opened(home, database_url)
    return process, another(process, "m", policy)


def opened(home: Path, database_url: str | None = None) -> Process:
    """Return a process of a new installation, whose recipes lie in ``home``."""
    chosen = {} if database_url is None else {"database_url": database_url}
    settings = Settings(home=home / "home", recipes=home, device="cpu", **chosen)
    ensure_secrets(settings)
    migrate(Database(settings.database_url))
    return Process.of(settings, ANY_DISTANCE)


def another(process: Process, name: str, policy: Mapping[str, Any]) -> str:
    """Register one more model of the same recipe, and prepare it."""
    with process.storage.database.write() as session:
        model_id = register(session, TENANT, name, "recipe", Policy.from_json(policy)).id
    worker(process).work(model_id)
    with process.storage.database.read() as session:
        model = session.get_one(Model, model_id)
        if model.status != "live":
            raise RuntimeError(f"the benchmark's model is {model.status}: {model.reason}")
    return model_id


def worker(process: Process) -> Worker:
    return Worker(process, pulse(process))


def pulse(process: Process) -> HeartbeatSender:
    return HeartbeatSender.of(process, "worker")


def delete(process: Process, subject: str, *models: str) -> None:
    order = Order(subject_id=subject, models=models or None)
    with process.storage.database.write() as session:
        accept(session, process.storage.pepper, TENANT, order)


def least_bytes(folder: Path, database: Database, numbers: int) -> None:
    """One checkpoint's bytes, durable, and one row, committed."""
    Store.at(folder).put([checkpoint_format.encode({"weights": torch.zeros(numbers)}, {})])
    with database.write() as session:
        row = PhaseSeconds(model_id="floor", method="floor", phase="floor", seconds=0.0, created_at=now(session))
        session.add(row)


def timed_update(process: Process, model_id: str) -> float:
    """Seconds from before the claim to after the commit."""
    watch = Stopwatch(pulse(process))
    start = time.perf_counter()
    job = claim(process.storage.database, model_id, process.owner, process.limits.lease_seconds)
    if not isinstance(job, Deletions):
        raise RuntimeError("there was nothing to update")
    expunge_workers.update.run.update(job, process.storage, process.settings, watch)
    return time.perf_counter() - start


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
