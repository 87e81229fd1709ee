"""A whole service in memory, for the simulation: two models, their worker's and keeper's real code, a set clock."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from celery import Celery
from sqlalchemy import select

from drills.worlds import World, open_world, settings_of, sqlite_databases
from service import crash, intake, queue
from service.backups import confirm
from service.identity import subject_digest
from service.memory import Clock, MemoryBell, MemoryDatabase, MemoryStore, image_of
from service.notes import Signer
from service.records import Forgotten, Membership, Model
from service.settings import Settings
from tests.workers.worlds import TENANT
from workers.bench import Benches
from workers.jobs import Preparation, Retraining, Work
from workers.keeper import Keeper, open_keeper
from workers.keystore import KeyRecord, KeyStore
from workers.prepare import prepare
from workers.restore import restore
from workers.retrain import retrain
from workers.stopwatch import Stopwatch
from workers.unlearn import Errand, release

LEASE_SECONDS = 30.0
MODELS: dict[str, dict[str, Any]] = {
    "alpha": {"require": "proved", "epsilon": 1.0, "sigma": 0.01, "delta_cap": 0.0018},
    "beta": {"require": "proved"},
}
"""alpha's budget allows two releases: then it is retrained"""


class Died(BaseException):
    """The process was killed at a crash point."""


class MemoryKeys(KeyStore):
    """The key store on a database in memory; its tables must be there."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database


@dataclass(frozen=True)
class Photograph:
    """Everything that a run begins with."""

    database: bytes
    keys: bytes
    store: dict[str, bytes]
    private: dict[str, bytes]
    journal: Path
    at: int


@dataclass
class Town:
    """Built once in a process: SQLAlchemy compiles a statement once for each engine."""

    clock: Clock
    database: MemoryDatabase
    keys: MemoryDatabase
    bell: MemoryBell
    world: World
    keeper: Keeper
    benches: Benches
    signer: Signer

    @property
    def models(self) -> dict[str, str]:
        """Name to id."""
        with self.database.read() as session:
            return {model.name: model.id for model in session.query(Model)}

    def accept(self, person: str, models: tuple[str, ...] | None, window: float) -> str:
        order = intake.Order(subject_id=person, models=models)
        with self.database.write() as session:
            accepted = intake.accept(
                session, self.world.workshop.pepper, TENANT, order, intake.Windows(cancel_seconds=window)
            )
        queue.ring(self.database, cast(Celery, self.bell), accepted.nudges)
        return accepted.request.id

    def digest_of(self, person: str) -> str:
        return subject_digest(self.world.workshop.pepper, TENANT, person)

    def absent(self, people: list[str]) -> set[tuple[str, str]]:
        """(model, person) of those people who are not in the served version."""
        digests = {self.digest_of(person): person for person in people}
        with self.database.read() as session:
            served = session.execute(
                select(Model.name, Model.lineage_id).where(Model.status.in_(("live", "exhausted")))
            ).all()
            present = {
                (name, digests.get(subject))
                for name, lineage_id in served
                for subject in session.scalars(
                    select(Membership.subject_digest)
                    .outerjoin(
                        Forgotten,
                        (Forgotten.lineage_id == Membership.lineage_id) & (Forgotten.position == Membership.position),
                    )
                    .where(Membership.lineage_id == lineage_id, Forgotten.position.is_(None))
                )
            }
        return {(name, person) for name, _ in served for person in people} - present

    def carry_out(self, job: Work) -> None:
        """What the worker does that holds this claim, late or not. Raises Stale, Died."""
        watch = Stopwatch(self.world.pulse())
        if isinstance(job, Retraining):
            retrain(self.world.workshop, job, watch)
        elif isinstance(job, Preparation):
            prepare(self.world.workshop, job, watch)
        else:
            release(Errand(self.world.workshop, self.benches, job, watch))

    def photograph(self) -> Photograph:
        """As everything is now."""
        shop = self.world.workshop
        store, private = (cast(MemoryStore, each).files for each in (shop.store, shop.private))
        journal = shop.store.root.with_name("photograph")
        shutil.copytree(shop.store.root, journal)
        return Photograph(self.database.image(), self.keys.image(), dict(store), dict(private), journal, self.clock.at)

    def go_back(self, photo: Photograph) -> None:
        """Everything becomes as it was photographed."""
        shop = self.world.workshop
        self.clock.at = photo.at
        self.database.restore(photo.database)
        self.keys.restore(photo.keys)
        for store, files in ((shop.store, photo.store), (shop.private, photo.private)):
            cast(MemoryStore, store).hold(files)
        shutil.rmtree(shop.store.root)
        shutil.copytree(photo.journal, shop.store.root)
        self.bell.messages.clear()
        self.benches = Benches(shop)

    def play_back(self, image: bytes) -> None:
        """Every process stops; the database becomes the backup's; the operator restores and confirms."""
        self.database.restore(image)
        self.bell.messages.clear()
        restore(self.world.workshop, self.signer)
        with self.database.write() as session:
            confirm(session, TENANT)


def found(folder: Path) -> Town:
    """A town whose models were prepared for real, in ``folder``."""
    settings = settings_of(folder / "home", sqlite_databases(folder)(folder / "home"), lease_seconds=LEASE_SECONDS)
    clock = Clock()
    keys = MemoryDatabase(clock)
    with keys.write() as session:
        KeyRecord.metadata.create_all(session.connection())
    database = MemoryDatabase(clock, image_of(folder / "template.db"))
    world = _world(settings, database, keys, folder / "store")
    for name, policy in MODELS.items():
        world.live(name=name, **policy)
    shop = world.workshop
    keeper = replace(_keeper(settings), database=database, keys=shop.keys, store=shop.store)
    keeper = replace(keeper, private=shop.private, bell=shop.bell)
    return Town(clock, database, keys, cast(MemoryBell, shop.bell), world, keeper, Benches(shop), keeper.signer())


def _world(settings: Settings, database: MemoryDatabase, keys: MemoryDatabase, folder: Path) -> World:
    world = open_world(settings)
    world.workshop.close()
    shop = replace(
        world.workshop,
        database=database,
        keys=MemoryKeys(keys),
        store=MemoryStore(folder, database.clock),
        private=MemoryStore(folder, database.clock),
        bell=cast(Celery, MemoryBell()),
    )
    return World(settings, shop)


def _keeper(settings: Settings) -> Keeper:
    keeper = open_keeper(settings)
    keeper.database.close()
    keeper.keys.close()
    return keeper


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    """Whoever comes to the crash point dies there: by an exception that nothing catches, in place of SIGKILL."""

    def die() -> None:
        raise Died(point)

    with meanwhile_at(point, die):
        yield


@contextmanager
def meanwhile_at(point: str, happen: Callable[[], object]) -> Iterator[None]:
    """``happen`` is called when somebody comes to the crash point, the first time."""
    waiting = [happen]

    def at(name: str) -> None:
        if name == point and waiting:
            waiting.pop()()

    original = crash.crash_point
    places = [module for name, module in sys.modules.items() if name.startswith(("workers.", "service."))]
    patched = [module for module in places if getattr(module, "crash_point", None) is original]
    for module in patched:
        module.crash_point = at  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in patched:
            module.crash_point = original  # type: ignore[attr-defined]
