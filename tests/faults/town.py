"""A whole service in memory, for the simulation: two models, their worker's and scheduler's real code, a set clock."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from celery import Celery
from sqlalchemy import select

from expunge_service.access.api_keys import NewKey, Scope, authenticate, create_key
from expunge_service.audit.log import newest_head
from expunge_service.audit.signed_note import Signer
from expunge_service.audit.witness import Witness
from expunge_service.infra.broker.notify import notify
from expunge_service.infra.files import Folder
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.settings import Settings, session_key
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tables import DeletionRequest, Hold, Membership, Model, Removal, WebhookEndpoint
from expunge_service.models.restore_guard import confirm
from expunge_service.queue import Preparation, Work
from expunge_service.requests import intake, spelling_decisions
from expunge_service.requests.states import RequestRefused
from expunge_service.requests.webhooks import add_endpoint
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.scheduler.replay import RestoreReport
from expunge_workers.scheduler.restore import restore
from expunge_workers.scheduler.run import Scheduler, extend_log, open_scheduler
from expunge_workers.storage.key_store import ERASED, SHARE_BYTES, KeyFiles, KeyRecord, KeysMissing, KeyStore
from expunge_workers.training.prepare import prepare
from expunge_workers.update.run import update
from tests.faults.judge import exported
from tests.faults.memory import ManualClock, MemoryBroker, MemoryDatabase, MemoryStore, image_of
from tests.harness.databases import sqlite_databases, sqlite_template
from tests.harness.files import root_of
from tests.harness.seams import at
from tests.workers.worlds import TENANT, World, open_world, settings_of

LEASE_SECONDS = 30.0
SMALL_BUDGET = {"guarantee": "proved", "epsilon": 1.0, "noise_std": 0.01, "max_distance": 0.0018}
MODELS: dict[str, dict[str, Any]] = {
    "alpha": {**SMALL_BUDGET, "fallback": "retrain"},
    "beta": {"guarantee": "proved"},
}
"""alpha's budget allows two updates: then it is retrained"""
ANOTHER = "gamma"
"""a model that is registered within a history"""


class Died(BaseException):
    """The process was killed at a crash point."""


class MemoryKeyFiles(KeyFiles):
    """Key files in a dictionary, as old as the day."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self.held: dict[str, bytes] = {}

    def write(self, shares: Sequence[bytes]) -> str:
        name = secrets.token_hex(8)
        self.held[name] = b"".join(shares)
        return name

    def erase(self, name: str, slots: Iterable[int]) -> None:
        content = bytearray(self._content(name))
        for slot in slots:
            content[slot * SHARE_BYTES : (slot + 1) * SHARE_BYTES] = ERASED
        self.held[name] = bytes(content)

    def erase_all(self, name: str) -> None:
        self.held[name] = bytes(len(self._content(name)))

    def unlink(self, names: Iterable[str]) -> None:
        for name in names:
            self.held.pop(name, None)

    def older_than(self, seconds: float) -> Iterator[str]:
        return iter(())

    def _content(self, name: str) -> bytes:
        if name not in self.held:
            raise KeysMissing(f"There is no key file {name}.")
        return self.held[name]


class MemoryKeys(KeyStore):
    """The key store in memory; its tables must be there."""

    def __init__(self, database: MemoryDatabase, files: MemoryKeyFiles) -> None:
        self._database, self._files = database, files


@dataclass(frozen=True)
class Photograph:
    """Everything that a run begins with."""

    database: bytes
    keys: bytes
    key_files: dict[str, bytes]
    store: dict[str, bytes]
    private: dict[str, bytes]
    journal: Path
    at: int


@dataclass(frozen=True)
class Doors:
    """API keys and a webhook that everybody begins with; the webhook wants no news, so nothing is ever sent."""

    keys: tuple[NewKey, ...]
    webhook: str


@dataclass(frozen=True)
class Standing:
    """What a restore must not turn back: ids of holds in force, of keys that open, of webhooks that are live."""

    holds: frozenset[str]
    keys: frozenset[str]
    webhooks: frozenset[str]


@dataclass
class Town:
    """Built once in a process: SQLAlchemy compiles a statement once for each engine."""

    clock: ManualClock
    database: MemoryDatabase
    keys: MemoryDatabase
    notifier: MemoryBroker
    world: World
    scheduler: Scheduler
    signer: Signer
    doors: Doors

    @property
    def key_files(self) -> MemoryKeyFiles:
        return cast(MemoryKeyFiles, self.world.storage.keys._files)

    @property
    def models(self) -> dict[str, str]:
        """Return the id of each model by its name."""
        with self.database.read() as session:
            return {model.name: model.id for model in session.query(Model)}

    def accept(self, person: str, models: tuple[str, ...] | None, window: float) -> str:
        order = intake.Order(subject_id=person, models=models)
        with self.database.write() as session:
            accepted = intake.accept(
                session, self.world.storage.pepper, TENANT, order, intake.Windows(cancel_seconds=window)
            )
        notify(self.database, cast(Celery, self.notifier), accepted.to_notify)
        return accepted.request.id

    def decide(self, request_id: str, right_id: str | None) -> None:
        """Say whose id a request's misspelled one is; None: another person's. Raise RequestRefused."""
        with self.database.write() as session:
            request = session.get_one(DeletionRequest, request_id)
            if right_id is None:
                changed = spelling_decisions.other_person(session, request, intake.NO_WINDOWS)
            else:
                pepper = self.world.storage.pepper
                changed = spelling_decisions.same_person(session, pepper, request, right_id, intake.NO_WINDOWS)
        notify(self.database, cast(Celery, self.notifier), changed)

    def digest_of(self, person: str) -> str:
        return subject_digest(self.world.storage.pepper, TENANT, person)

    def absent(self, people: list[str]) -> set[tuple[str, str]]:
        """Return (model, person) of those people who are not in the served version."""
        digests = {self.digest_of(person): person for person in people}
        with self.database.read() as session:
            served = session.execute(
                select(Model.name, Model.generation_id).where(Model.status.in_(("live", "exhausted")))
            ).all()
            present = {
                (name, digests.get(subject))
                for name, generation_id in served
                for subject in session.scalars(
                    select(Membership.subject_digest)
                    .outerjoin(
                        Removal,
                        (Removal.generation_id == Membership.generation_id) & (Removal.position == Membership.position),
                    )
                    .where(Membership.generation_id == generation_id, Removal.position.is_(None))
                )
            }
        return {(name, person) for name, _ in served for person in people} - present

    def carry_out(self, job: Work) -> None:
        """Do what a worker does that holds this claim, late or not. Raise Stale, Died."""
        watch = Stopwatch(self.world.pulse())
        if isinstance(job, Preparation):
            prepare(self.world.process, job, watch)
        else:
            update(job, self.world.storage, self.world.settings, watch)

    def photograph(self) -> Photograph:
        """Return everything as it is now."""
        storage = self.world.storage
        store, private = (cast(MemoryStore, each).files for each in (storage.store, storage.private))
        journal = root_of(storage.store).with_name("photograph")
        shutil.copytree(root_of(storage.store), journal)
        return Photograph(
            self.database.image(),
            self.keys.image(),
            dict(self.key_files.held),
            dict(store),
            dict(private),
            journal,
            self.clock.at,
        )

    def go_back(self, photo: Photograph) -> None:
        """Set everything to what was photographed."""
        storage = self.world.storage
        self.clock.at = photo.at
        self.database.restore(photo.database)
        self.keys.restore(photo.keys)
        self.key_files.held = dict(photo.key_files)
        for store, files in ((storage.store, photo.store), (storage.private, photo.private)):
            cast(MemoryStore, store).replace_all(files)
        shutil.rmtree(root_of(storage.store))
        shutil.copytree(photo.journal, root_of(storage.store))
        self.notifier.messages.clear()
        self._forget()

    def _forget(self) -> None:
        """Let worker and scheduler begin again: what they remember of the database ends with their processes."""
        for process in (self.world.storage, self.scheduler):
            for name in ("guard", "journal"):
                process.__dict__.pop(name, None)

    def play_back(self, image: bytes, with_log: bool) -> RestoreReport:
        """Stop every process, replace the database with the backup's, restore and confirm, as an operator does.

        ``with_log``: the log was exported at the last moment.
        """
        log = [self.export()] if with_log else []
        self.database.restore(image)
        self.notifier.messages.clear()
        self._forget()
        report = restore(self.world.storage, self.world.limits.lease_seconds, self.signer, log)
        with self.database.write() as session:
            confirm(session, TENANT, Witness(self.world.storage.store.folder))
        return report

    def export(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the newest signed head, and every entry."""
        while extend_log(self.database, self.signer, self.world.storage.guard.witness):
            pass
        with self.database.read() as session:
            head = newest_head(session)
            return head.note if head else "", list(exported(session))

    def standing(self) -> Standing:
        """Return what is in force now; a key opens when it authenticates."""
        with self.database.read() as session:
            pepper = self.world.storage.pepper
            kept = select(Hold.id).where(Hold.lifted_at.is_(None))
            live = select(WebhookEndpoint.id).where(WebhookEndpoint.disabled_at.is_(None))
            return Standing(
                holds=frozenset(session.scalars(kept)),
                keys=frozenset(key.id for key in self.doors.keys if authenticate(session, pepper, key.secret)),
                webhooks=frozenset(session.scalars(live)),
            )

    def register(self) -> str | None:
        """Register one more model, with the recipe of the others; None where it is there already."""
        with suppress(RequestRefused):
            return self.world.register(name=ANOTHER, leave_out_forgotten=True, guarantee="proved")
        return None


def found(folder: Path) -> Town:
    """Build a town whose models were prepared for real, in ``folder``."""
    settings = settings_of(folder / "home", sqlite_databases(sqlite_template(folder))(folder / "home"))
    clock = ManualClock()
    keys = MemoryDatabase(clock)
    with keys.write() as session:
        KeyRecord.metadata.create_all(session.connection())
    database = MemoryDatabase(clock, image_of(folder / "template.db"))
    world = _world(settings, database, keys, folder / "store")
    for name, policy in MODELS.items():
        world.live(name=name, **policy)
    storage = world.storage
    scheduler = replace(_scheduler(settings), database=database, keys=storage.keys, store=storage.store)
    scheduler = replace(scheduler, private=storage.private, notifier=world.process.notifier)
    notifier, signer = cast(MemoryBroker, world.process.notifier), scheduler.signer()
    return Town(clock, database, keys, notifier, world, scheduler, signer, _doors(world))


def _doors(world: World) -> Doors:
    with world.database.write() as session:
        pepper = world.storage.pepper
        keys = tuple(create_key(session, pepper, label="drill", scopes=[Scope.AUDIT_READ]) for _ in range(3))
        endpoint, _ = add_endpoint(session, session_key(world.settings), TENANT, "https://example.com/drill", [])
        return Doors(keys, endpoint.id)


def _world(settings: Settings, database: MemoryDatabase, keys: MemoryDatabase, folder: Path) -> World:
    world = open_world(settings)
    world.storage.close()
    storage = replace(
        world.storage,
        database=database,
        keys=MemoryKeys(keys, MemoryKeyFiles(folder_at(settings.key_folder))),
        store=MemoryStore(folder, database.clock),
        private=MemoryStore(folder, database.clock),
    )
    return World(replace(world.process, storage=storage, notifier=cast(Celery, MemoryBroker())))


def _scheduler(settings: Settings) -> Scheduler:
    scheduler = open_scheduler(settings)
    scheduler.database.close()
    scheduler.keys.close()
    return scheduler


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    """Die at the crash point, by an exception that nothing catches, in place of SIGKILL."""

    def die() -> None:
        raise Died(point)

    with meanwhile_at(point, die):
        yield


@contextmanager
def meanwhile_at(point: str, happen: Callable[[], object]) -> Iterator[None]:
    """Call ``happen`` the first time that somebody comes to the crash point."""
    waiting = [happen]

    def once() -> None:
        if waiting:
            waiting.pop()()

    with at(point, once):
        yield
