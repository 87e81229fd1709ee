"""A worker in a world of its own: a real database, real stores, a real broker; the worker runs in this process."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import runpy
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import func, select, update

from expunge_service.audit import version_file
from expunge_service.infra.db import Database, now
from expunge_service.infra.limits import Limits
from expunge_service.infra.pseudonyms import new_id, subject_digest
from expunge_service.infra.settings import Settings, ensure_secrets
from expunge_service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    DeletionRequest,
    Generation,
    Hold,
    Lease,
    Model,
    Record,
    Removal,
    StoredVector,
    Task,
    Version,
)
from expunge_service.infra.time import SECOND
from expunge_service.models import committed_in_full, model_lease, registration, write_marked
from expunge_service.models.publication_entry import PUBLISHING, claim_digest
from expunge_service.queue import ClaimedTask, Deletions, Preparation, Result, claim
from expunge_service.requests import identity_check, intake
from expunge_service.requests.states import Suppress
from expunge_workers.app import Worker
from expunge_workers.runtime.heartbeat import HeartbeatSender, Stopwatch
from expunge_workers.runtime.process import Process
from expunge_workers.scheduler.run import LEASE as SCHEDULER
from expunge_workers.storage import private_state
from expunge_workers.storage.storage import Storage
from expunge_workers.update import run
from tests.harness.draws import fix_draw
from tests.harness.seams import arm_from_environment
from tests.workers import meanwhile
from unlearning.accounting.policy import Policy
from unlearning.recipe import Recipe
from unlearning.types import State

TENANT = "default"
PATIENCE_SECONDS = 120
RECIPES = Path(__file__).parent / "recipes"


@dataclass
class World:
    process: Process

    @property
    def settings(self) -> Settings:
        return self.process.settings

    @property
    def limits(self) -> Limits:
        return self.process.limits

    @property
    def storage(self) -> Storage:
        return self.process.storage

    @property
    def database(self) -> Database:
        return self.storage.database

    def configured(self, **changes: Any) -> World:
        """The same world for a process that is configured otherwise."""
        return World(replace(self.process, settings=self.settings.model_copy(update=changes)))

    def limited(self, **limits: Any) -> World:
        """The same world for a process with other limits."""
        return World(replace(self.process, limits=replace(self.limits, **limits)))

    def register(
        self,
        recipe: str = "convex",
        method: str = "recollection",
        name: str = "m",
        *,
        leave_out_forgotten: bool = False,
        threshold: float | None = None,
        **policy: Any,
    ) -> str:
        """A model that is to be prepared. Unless told otherwise it holds at a dead end: a test sees the reason.

        Nor does it wait for a batch, also where a busy machine takes over a minute for its training.
        ``threshold``: the limit ``distance_left`` of this world's process from now on.
        """
        if threshold is not None:
            self.process = replace(self.process, limits=replace(self.limits, distance_left=threshold))
        usual = {"method": method, "max_accuracy_drop": None, "fallback": "hold", "batch": 0}
        chosen = Policy.from_json(usual | policy)
        with self.database.write() as session:
            return registration.register(
                session, TENANT, name, recipe, chosen, leave_out_forgotten=leave_out_forgotten
            ).id

    def live(self, recipe: str = "convex", method: str = "recollection", name: str = "m", **policy: Any) -> str:
        """A model with version 1."""
        model_id = self.register(recipe, method, name, **policy)
        self.work(model_id)
        model = self.model(model_id)
        assert model.status == "live", model.reason
        return model_id

    def delete(
        self,
        subject: str | None = None,
        samples: list[str] | None = None,
        models: tuple[str, ...] | None = None,
        suppress: Suppress = Suppress.NAMED_MODELS,
    ) -> str:
        """Ask for a deletion; one that names models leaves later registrations alone, unless told otherwise."""
        named = None if samples is None else tuple(samples)
        order = intake.Order(subject_id=subject, sample_ids=named, models=models, suppress=suppress)
        with self.database.write() as session:
            return intake.accept(session, self.storage.pepper, TENANT, order).request.id

    def stranger(self, subject: str) -> str:
        """A request that nobody has verified."""
        order = intake.Order(subject_id=subject, verified=False)
        with self.database.write() as session:
            return intake.accept(session, self.storage.pepper, TENANT, order).request.id

    def verify(self, request_id: str) -> None:
        with self.database.write() as session:
            identity_check.verify(session, session.get_one(DeletionRequest, request_id), intake.NO_WINDOWS)

    def worker(self) -> Worker:
        return Worker(self.process, self.pulse())

    def pulse(self) -> HeartbeatSender:
        return HeartbeatSender.of(self.process, "worker")

    def work(self, model_id: str) -> None:
        """What one notification does, and the worker's next heartbeat."""
        pulse = self.pulse()
        Worker(self.process, pulse).work(model_id)
        pulse.run_errands()

    def recipe(self, name: str) -> Recipe:
        """What the recipe is on all rows of its table as it is now, made in this process."""
        return recipe_in(self.settings.recipes, name)

    def rows(self, table: str = "people.csv") -> list[dict[str, str]]:
        """The rows of a table beside this world's recipes."""
        with (self.settings.recipes / table).open(newline="", encoding="utf-8") as file:
            return [*csv.DictReader(file)]

    def write_rows(self, rows: Iterable[Mapping[str, object]], table: str = "people.csv") -> None:
        """Write a table beside this world's recipes anew; updates that come read it so."""
        rows = [*rows]
        with (self.settings.recipes / table).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def drop_rows(self, *ids: str, table: str = "people.csv") -> None:
        """Remove rows from a table, as its owner may at any time."""
        self.write_rows([row for row in self.rows(table) if row["id"] not in ids], table)

    def scale_rows(self, factor: float, *ids: str, table: str = "people.csv") -> None:
        """Multiply the numbers ``a`` to ``d`` of rows."""
        rows = self.rows(table)
        for row in rows:
            if row["id"] in ids:
                row |= {column: repr(factor * float(row[column])) for column in "abcd"}
        self.write_rows(rows, table)

    def write_people(self, count: int, table: str = "crowd.csv") -> None:
        """Write a table of so many people with one row each."""
        ids, people, inputs, labels = meanwhile.people(count, 1)
        self.write_rows(
            (
                {"id": row, "person": person, **dict(zip("abcd", map(repr, x), strict=True)), "label": label}
                for row, person, x, label in zip(ids, people, inputs.tolist(), labels.tolist(), strict=True)
            ),
            table,
        )

    def claim(self, model_id: str, owner: str = "another", seconds: float = 30.0) -> Preparation | Deletions | None:
        return claim(self.database, model_id, owner, seconds)

    def update(self, job: Deletions) -> Mapping[ClaimedTask, Result]:
        watch = Stopwatch(self.pulse())
        return run.update(job, self.storage, self.settings, watch)

    def expire_lease(self, model_id: str) -> None:
        """As if the worker had died and its lease had run out."""
        with self.database.write() as session:
            taken = update(Lease).where(Lease.name == model_lease(model_id), Lease.expires_at > 0)
            session.execute(taken.values(expires_at=1))
            session.get_one(Model, model_id).due_at = None

    def prolong_lease(self, model_id: str) -> None:
        """As if the worker held on to it for an hour: a machine that is busy must not end it in a test's middle."""
        with self.database.write() as session:
            taken = update(Lease).where(Lease.name == model_lease(model_id))
            session.execute(taken.values(expires_at=now(session) + 3600 * SECOND))

    def hold(self, subject: str) -> None:
        with self.database.write() as session:
            session.add(
                Hold(
                    id=new_id(),
                    tenant_id=TENANT,
                    subject_digest=subject_digest(self.storage.pepper, TENANT, subject),
                    reason="litigation",
                    created_at=now(session),
                )
            )

    def change(self, record: type[Any], key: Any, **values: Any) -> None:
        with self.database.write() as session:
            row = session.get_one(record, key)
            for name, value in values.items():
                setattr(row, name, value)

    def commit_anew(self, model_id: str, *, before_commitments: bool = False, drafted_as: int | None = None) -> None:
        """Make the current version one that was published with what the tables say now, after a test changed them.

        ``before_commitments``: by a release whose versions had none. ``drafted_as``: the number that it was published
        under, where the test gave it another.
        """
        head, generation = self.head(model_id), self.generation(model_id)
        with self.database.snapshot() as session:
            now_said = committed_in_full(session, self.storage.pepper, generation)
        with self.database.write() as session:
            write_marked(session, generation.id, now_said.marks)
        tables = dict(now_said.tables)
        said = None if before_commitments else tables
        self.change(Version, head.id, commitments=said)
        entry, head = self.storage.journal.draft(model_id, drafted_as or head.number), self.head(model_id)
        name = version_file(model_id, head.number)
        row = {name: getattr(head, name) for name in entry.version or {}} | {"commitments": said}
        record = {name: value for name, value in vars(entry).items() if name not in ("name", "committed")}
        record |= {"version": row, "spent": generation.spent}
        sealed = self.storage.sealer.seal(f"updates/{name}", json.dumps(record).encode())
        (Path(str(self.settings.store)) / "updates" / f"{name}.draft").unlink()
        self.storage.guard.witness.updates.add(f"{name}.draft", [f"{head.id}\n".encode(), sealed])

    def lease(self, model_id: str) -> Lease:
        """The lease for the model's preparation and updates. Its token is 0 once it was released."""
        with self.database.read() as session:
            return session.get_one(Lease, model_lease(model_id))

    def model(self, model_id: str) -> Model:
        with self.database.read() as session:
            return session.get_one(Model, model_id)

    def model_named(self, name: str) -> str:
        """The model's id."""
        with self.database.read() as session:
            return session.scalars(select(Model.id).where(Model.name == name)).one()

    def generation(self, model_id: str) -> Generation:
        with self.database.read() as session:
            return session.get_one(Generation, session.get_one(Model, model_id).generation_id)

    def report(self, model_id: str) -> dict[str, Any]:
        """The preparation report that the API shows."""
        return self.storage.figures.shown(self.generation(model_id)) or {}

    def head(self, model_id: str) -> Version:
        with self.database.read() as session:
            return session.get_one(Version, session.get_one(Model, model_id).current_id)

    def versions(self, model_id: str) -> list[Version]:
        with self.database.read() as session:
            query = select(Version).where(Version.model_id == model_id).order_by(Version.number)
            return list(session.scalars(query))

    def state(self, version: Version) -> State:
        """The secret state of a version. Raises Damaged."""
        stores = self.storage.private, self.storage.sealer
        return private_state.load(*stores, private_state.place_of(version), version.state, torch.device("cpu"))

    def request(self, request_id: str) -> DeletionRequest:
        with self.database.read() as session:
            return session.get_one(DeletionRequest, request_id)

    def task(self, request_id: str) -> Task:
        with self.database.read() as session:
            return session.scalars(select(Task).where(Task.request_id == request_id)).one()

    def claims_logged(self, model_id: str) -> int:
        """How many versions there are; each has an entry that publishes it, with the digest of its claim."""
        with self.database.read() as session:
            entries = session.scalars(select(AuditEntry).where(AuditEntry.kind.in_(PUBLISHING))).all()
        said = {body["version"]: body["claim_sha256"] for body in (json.loads(entry.body) for entry in entries)}
        versions = self.versions(model_id)
        assert {each.id: claim_digest(each.claim) for each in versions} == {each.id: said[each.id] for each in versions}
        return len(versions)

    def kinds(self) -> list[str]:
        """The kinds of all audit entries, in order."""
        with self.database.read() as session:
            return list(session.scalars(select(AuditEntry.kind).order_by(AuditEntry.id)))

    def count(self, record: type[Any]) -> int:
        with self.database.read() as session:
            return session.scalar(select(func.count()).select_from(record)) or 0

    def footprint(self) -> dict[str, int]:
        """Everything that an update may change, counted."""
        return {
            record.__name__: self.count(record) for record in (Version, Removal, BudgetEntry, StoredVector, AuditEntry)
        }

    def rows_of(self, record: type[Any]) -> list[Any]:
        with self.database.read() as session:
            return list(session.scalars(select(record)))


def recipe_in(folder: Path, name: str) -> Recipe:
    """What a recipe with rows is, called by hand in its folder."""
    sys.path.insert(0, str(folder))
    try:
        with contextlib.chdir(folder):
            made = runpy.run_path(f"{name}.py")["recipe"]()
    finally:
        sys.path.remove(str(folder))
    assert isinstance(made, Recipe)
    return made


def settings_of(home: Path, database_url: str, recipes: Path = RECIPES, **changes: Any) -> Settings:
    """Return the settings of a world in ``home``, with its own copy of ``recipes``: nobody else edits its models'."""
    copies = home.parent / "recipes"
    shutil.copytree(recipes, copies, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    chosen = Settings(home=home, database_url=database_url, recipes=copies, device="cpu", **changes)
    fix_draw(chosen)
    ensure_secrets(chosen)
    return chosen


def end_schedulers_lease(world: World) -> None:
    """End the lease of a scheduler that died."""
    with world.database.write() as session:
        session.execute(update(Lease).where(Lease.name == SCHEDULER).values(expires_at=0))


def keep_lease(world: World, model_id: str) -> None:
    """However slow this machine is, the dead worker's lease has not run out."""
    world.change(Lease, model_lease(model_id), expires_at=2**62)


def release_connections(world: World) -> None:
    """Before a fork."""
    world.storage.database.close()
    world.storage.keys.close()


def fork(act: Callable[[], object], **environment: str) -> int:
    """Run ``act`` in a process of its own and return its wait status."""
    return os.waitpid(begin(act, **environment), 0)[1]


def begin(act: Callable[[], object], **environment: str) -> int:
    """Begin ``act`` in a process of its own and return its process number. It must open its own connections.

    A child that hangs ends by SIGALRM: a lock that another thread held at the fork is never given back.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE_SECONDS)
        os.environ |= environment
        code = 3
        try:
            arm_from_environment()
            act()
            for each in threading.enumerate():  # a process that ends by itself waits for them too
                if isinstance(each, threading.Timer):
                    each.join()
            code = 0
        finally:
            os._exit(code)
    return child


def open_world(settings: Settings, **stores: Any) -> World:
    process = Process.of(settings)
    return World(replace(process, storage=replace(process.storage, **stores)))


def seconds(count: float) -> int:
    return int(count * SECOND)


def database_text(world: World) -> str:
    """Every value of every table, as text."""
    with world.database.read() as session:
        tables = Record.metadata.sorted_tables
        return "\n".join(str(tuple(row)) for table in tables for row in session.execute(select(table)))
