"""A release against its floor, and a backlog: SQLite, one worker in this process, basis ``none``.

The floor of a release is the bytes of one checkpoint written and synced durably, plus one committed transaction. The
release is timed from before its claim to after its commit: digest, noise, the sealed private state and every row
included. Both sides run alternately, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from service import intake, registration
from service.db import Database, now
from service.records import Model, PhaseSeconds
from service.schema import migrate
from service.settings import Settings, ensure_secrets
from service.storage import Store
from unlearning.policy import Policy
from workers import codec, unlearn
from workers.app import Worker
from workers.bench import Benches
from workers.claim import claim
from workers.jobs import Deletions
from workers.pulse import Pulse
from workers.stopwatch import Stopwatch
from workers.workshop import Workshop, open_workshop

TENANT = "default"
RECIPE = """
import torch
import unlearning as ul

def recipe():
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn({people}, {features}, generator=random)
    targets = torch.arange({people}) % {classes}
    names = [f"p{{index}}" for index in range({people})]
    return ul.Recipe(
        model=lambda: torch.nn.Linear({features}, {classes}, bias=False),
        samples=ul.Samples(ids=names, subjects=names, inputs=inputs, targets=targets),
        holdout=(inputs[:8], targets[:8]),
        loss="cross_entropy",
        training=ul.Training(epochs=1, learning_rate=1 / {features}, weight_decay=0.01),
    )
"""


def rows() -> Iterator[dict[str, Any]]:
    yield floor("d = 21,840", people=40, features=2184, releases=30, target=3.0)
    yield floor("d = 11.2 million", people=10, features=1_120_000, releases=7, target=4.0)
    yield backlog(10_000)


def floor(label: str, people: int, features: int, releases: int, target: float) -> dict[str, Any]:
    """Median release over median floor, in wall-clock seconds: the wait for the disk is the point."""
    with tempfile.TemporaryDirectory() as folder:
        workshop, model_id = live(Path(folder), people=people, features=features, classes=10)
        benches, store = Benches(workshop), Store(Path(folder) / "floor")
        fast, slow = [], []
        for index in range(releases):
            delete(workshop, f"p{index}")
            slow.append(timed(lambda: least(workshop, store, model_id, 10 * features)))
            fast.append(timed_release(workshop, benches, model_id))
        workshop.close()
    ratio = statistics.median(fast) / statistics.median(slow)
    return {
        "name": f"release / floor, {label}",
        "value": ratio,
        "target": f"<= {target:g}",
        "unit": "ratio",
        "met": ratio <= target,
        "raw": {"release": fast, "floor": slow},
    }


def backlog(count: int) -> dict[str, Any]:
    """Requests that one coalesced release completes per CPU second, claim to destroyed keys."""
    with tempfile.TemporaryDirectory() as folder:
        workshop, model_id = live(Path(folder), people=count + 100, features=4, classes=2)
        with workshop.database.write() as session:
            for index in range(count):
                intake.accept(session, workshop.pepper, TENANT, intake.Order(subject_id=f"p{index}"))
        start = time.process_time()
        worker(workshop).work(model_id)
        taken = time.process_time() - start
        workshop.close()
    return {
        "name": f"backlog of {count:,} drained",
        "value": count / taken,
        "target": ">= 2000",
        "unit": "requests / CPU s",
        "met": count / taken >= 2000,
        "raw": {"cpu_seconds": taken, "requests": count},
    }


def live(home: Path, database_url: str | None = None, **sizes: int) -> tuple[Workshop, str]:
    (home / "recipe.py").write_text(RECIPE.format(**sizes))
    chosen = {} if database_url is None else {"database_url": database_url}
    settings = Settings(home=home / "home", recipes=home, device="cpu", **chosen)
    ensure_secrets(settings)
    migrate(Database(settings.database_url))
    workshop = open_workshop(settings)
    policy = Policy.from_json({"method": "recollection", "threshold": 1e9, "utility_tolerance": None})
    with workshop.database.write() as session:
        model_id = registration.register(session, TENANT, "m", "recipe", policy).id
    worker(workshop).work(model_id)
    with workshop.database.read() as session:
        model = session.get_one(Model, model_id)
        if model.status != "live":
            raise RuntimeError(f"the benchmark's model is {model.status}: {model.reason}")
    return workshop, model_id


def worker(workshop: Workshop) -> Worker:
    return Worker(workshop, pulse(workshop))


def pulse(workshop: Workshop) -> Pulse:
    return Pulse(workshop.database, workshop.owner, "worker", workshop.lease_seconds, "cpu")


def delete(workshop: Workshop, subject: str) -> None:
    with workshop.database.write() as session:
        intake.accept(session, workshop.pepper, TENANT, intake.Order(subject_id=subject))


def least(workshop: Workshop, store: Store, model_id: str, numbers: int) -> None:
    """One checkpoint's bytes, durable, and one row, committed."""
    store.put(codec.encode({"weights": torch.zeros(numbers)}, {}))
    with workshop.database.write() as session:
        row = PhaseSeconds(model_id=model_id, method="floor", phase="floor", seconds=0.0, created_at=now(session))
        session.add(row)


def timed_release(workshop: Workshop, benches: Benches, model_id: str) -> float:
    """Seconds of the release's phases: claim to commit. What follows the commit is not part of it."""
    watch = Stopwatch(pulse(workshop))
    start = time.perf_counter()
    job = claim(workshop.database, model_id, workshop.owner, workshop.lease_seconds)
    if not isinstance(job, Deletions):
        raise RuntimeError("there was nothing to release")
    committed: list[float] = []
    original = unlearn.note_commit

    def noted(*values: Any) -> None:
        committed.append(time.perf_counter())
        original(*values)

    unlearn.note_commit = noted  # type: ignore[assignment]
    try:
        unlearn.release(unlearn.Errand(workshop, benches, job, watch))
    finally:
        unlearn.note_commit = original
    return committed[0] - start


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
