"""One fault in each deletion: COMMIT cut by a proxy, the backend killed, the disk full or failing. Then it is repaired.

Every round asks through the API as a client does who repeats with its key what got no answer, lets a worker work
while the fault lasts and again when it is over, and looks whether every rule still holds.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import secrets
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fastapi.testclient import TestClient
from sqlalchemy import make_url, select, text

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from expunge_service.infra.db import Database
from expunge_service.infra.files import DiskFolder, Files
from expunge_service.infra.settings import Settings
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import DeletionRequest
from expunge_workers.scheduler.run import open_scheduler
from tests.faults.crowd import copy_recipes
from tests.faults.invariants import ENDED, Broken, broken, left_behind, unreadable
from tests.faults.judge import harm, sentences
from tests.faults.proxy import Cut, Proxy, proxy
from tests.faults.result import Result
from tests.harness import servers
from tests.harness.databases import postgres_databases, sqlite_databases, sqlite_template
from tests.workers.worlds import World, end_schedulers_lease, open_world, settings_of

ROUNDS = 120
PEOPLE = 400
HERE = Path(__file__).parent
TRIES = 12
HARMED = ("deletion_requests", "suppressions", "tasks", "audit_entries", "versions", "forgotten", "budget_entries")
CUTS: tuple[Cut, ...] = ("before", "after", "answered")
TMPFS_BYTES = 1 << 20


class Moody(Files):
    """The durable file operations on a disk whose fsync fails while ``failing``."""

    failing = False

    def sync(self, file: BinaryIO) -> None:
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(file)


@dataclass
class Scene:
    world: World
    api: TestClient
    model_id: str
    chance: random.Random
    straight: Database
    """to the database itself, past the proxy"""
    proxy: Proxy | None
    disk: Moody
    asked: list[str] = field(default_factory=list)
    """ids of the acknowledged requests"""
    held: int = 0
    told: set[Broken] = field(default_factory=set)
    """what was found broken in an earlier round"""


Fault = Callable[[Scene], AbstractContextManager[None]]
Kind = tuple[Callable[[random.Random], AbstractContextManager[Scene]], tuple[Fault, ...]]


def run(seed: int, scale: float) -> Result:
    chance, rounds = random.Random(seed), max(1, int(ROUNDS * scale))
    found: list[Broken] = []
    done: Counter[str] = Counter()
    held = 0
    for kind, faults in ((postgres_scene, (cut_commit, kill_backend, full_disk, failing_fsync)), *_sqlite_kinds()):
        with kind(chance) as scene:
            for number in range(rounds):
                fault = faults[number % len(faults)]
                found += survive(scene, fault)
                done[f"{kind.__name__.removesuffix('_scene')} {fault.__name__}"] += 1
            held += scene.held
    told = ", ".join(f"{count} x {name.replace('_', ' ')}" for name, count in done.items())
    told += f"; {held} were blocked, and retried"
    return Result("faults", cases=done.total(), faults=done.total(), **harm(found), notes=(told, *sentences(found)))


def _sqlite_kinds() -> list[Kind]:
    small: list[Kind] = [(tmpfs_scene, (no_space,))] if os.geteuid() == 0 else []
    return [(sqlite_scene, (full_disk, failing_fsync)), *small]


def survive(scene: Scene, fault: Fault) -> list[Broken]:
    """Forget one more person while the fault happens; return what is broken afterwards."""
    person, key = f"crowd-person-{len(scene.asked)}", secrets.token_hex(16)
    request_id = None
    with fault(scene):
        request_id = ask(scene, person, key)
        with suppress(Exception):  # the process may die of it: another one comes
            scene.world.work(scene.model_id)
    repeated = insist(scene, person, key)
    if repeated is None or (request_id is not None and repeated != request_id):
        return [Broken("lost", f"{fault.__name__}: the repeated call was answered {repeated}, not {request_id}")]
    scene.asked.append(repeated)
    _settle(scene, repeated)
    if scene.world.request(repeated).status == "blocked":  # visible, and retried by hand, once
        scene.held += 1
        scene.api.post(f"/v1/deletion-requests/{repeated}/retry")
        _settle(scene, repeated)
    _tick(scene)
    new = [each for each in _look(scene) if each not in scene.told]
    scene.told.update(new)
    return [Broken(each.harm, f"{fault.__name__}: {each.words}") for each in new]


def _settle(scene: Scene, request_id: str) -> None:
    for _ in range(TRIES):
        scene.world.expire_lease(scene.model_id)
        scene.world.work(scene.model_id)
        if scene.world.request(request_id).status in ENDED:
            break


def _tick(scene: Scene) -> None:
    """Run a scheduler that starts after the fault."""
    end_schedulers_lease(scene.world)
    scheduler = open_scheduler(scene.world.settings)
    scheduler.tick(1)
    scheduler.database.close()
    scheduler.keys.close()


def ask(scene: Scene, person: str, key: str) -> str | None:
    """Ask for a deletion; return the request's id if it was acknowledged."""
    try:
        answer = scene.api.post("/v1/deletion-requests", json={"subject_id": person}, headers={"Idempotency-Key": key})
    except OSError:
        return None
    return str(answer.json()["id"]) if answer.status_code == 202 else None


def insist(scene: Scene, person: str, key: str) -> str | None:
    """Repeat the call and return the request's id. A 503, or a 409 while the server still ends a cut session, is tried
    again.
    """
    for _ in range(TRIES):
        request_id = ask(scene, person, key)
        if request_id is not None:
            return request_id
        time.sleep(0.5)
    return None


def _look(scene: Scene) -> list[Broken]:
    with scene.straight.read() as session:
        rows = {row.id: row for row in session.scalars(select(DeletionRequest))}
    found = [
        Broken(
            "lost",
            f"request {each} is {getattr(rows.get(each), 'status', 'gone')}, {getattr(rows.get(each), 'reason', '')}",
        )
        for each in scene.asked
        if each not in rows or rows[each].status != "completed"
    ]
    if len(rows) > len(scene.asked):
        found.append(Broken("doubled", f"{len(rows)} requests of {len(scene.asked)} calls"))
    storage = scene.world.storage
    found += broken(scene.straight) + left_behind(scene.straight, storage.keys)
    return found + unreadable(scene.straight, storage.store, storage.private)


@contextmanager
def cut_commit(scene: Scene) -> Iterator[None]:
    """Cut off one of the next transactions, the intake's or the worker's, at its COMMIT."""
    assert scene.proxy is not None
    scene.proxy.arm(*[None] * scene.chance.randrange(6), scene.chance.choice(CUTS))
    yield
    scene.proxy.arm()


@contextmanager
def kill_backend(scene: Scene) -> Iterator[None]:
    """Terminate the first session that writes into a table, in the middle of its transaction."""
    table = scene.chance.choice(HARMED)
    statements = (
        "CREATE SEQUENCE deaths",
        """CREATE FUNCTION die_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF nextval('deaths') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5); END IF;
           RETURN NULL; END $$""",
        f"CREATE TRIGGER death AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION die_once()",
    )
    _execute(scene.straight, *statements)
    yield
    _execute(scene.straight, f"DROP TRIGGER death ON {table}", "DROP FUNCTION die_once", "DROP SEQUENCE deaths")


@contextmanager
def full_disk(scene: Scene) -> Iterator[None]:
    """Let no file grow beyond a few kilobytes: the kernel refuses as a quota does, SQLite's database included."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (scene.chance.choice((0, 64, 4096, 40_000)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def failing_fsync(scene: Scene) -> Iterator[None]:
    scene.disk.failing = True
    try:
        yield
    finally:
        scene.disk.failing = False


@contextmanager
def no_space(scene: Scene) -> Iterator[None]:
    """Fill the filesystem of everything to its last bytes: ENOSPC."""
    filler = scene.world.settings.home.parent / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 4096):
            pass
    os.truncate(filler, max(0, filler.stat().st_size - scene.chance.choice((0, 4096, 16_384))))
    try:
        yield
    finally:
        filler.unlink()


def _execute(database: Database, *statements: str) -> None:
    with database.write() as session:
        for statement in statements:
            session.execute(text(statement))


@contextmanager
def postgres_scene(chance: random.Random) -> Iterator[Scene]:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="expunge-drill-")))
        url = held.enter_context(postgres_databases(held.enter_context(servers.postgres())))(folder)
        address = make_url(url)
        between = held.enter_context(proxy(str(address.host), int(address.port or 0)))
        settings = settings_of(folder / "home", url, copy_recipes(folder / "drill", PEOPLE)).model_copy(
            update={"database_url": address.set(port=between.port).render_as_string(hide_password=False)}
        )
        yield held.enter_context(_scene(settings, chance, url, between))


@contextmanager
def sqlite_scene(chance: random.Random) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="expunge-drill-") as folder, _in_folder(Path(folder), chance) as scene:
        yield scene


@contextmanager
def tmpfs_scene(chance: random.Random) -> Iterator[Scene]:
    """Open a scene on a small separate filesystem. Needs root."""
    with tempfile.TemporaryDirectory(prefix="expunge-drill-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={16 * TMPFS_BYTES}", "tmpfs", folder], check=True)
        try:
            with _in_folder(Path(folder), chance) as scene:
                yield scene
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def _in_folder(folder: Path, chance: random.Random) -> Iterator[Scene]:
    url = sqlite_databases(sqlite_template(folder))(folder / "home")
    settings = settings_of(folder / "home", url, copy_recipes(folder / "drill", PEOPLE))
    with _scene(settings, chance, settings.database_url, None) as scene:
        yield scene


@contextmanager
def _scene(settings: Settings, chance: random.Random, url: str, between: Proxy | None) -> Iterator[Scene]:
    settings = settings.model_copy(update={"rate": 1_000_000.0})
    disk = Moody()
    folders = {"store": settings.store, "private": settings.private_store}
    stores = {name: Store(DiskFolder(Path(folder), disk)) for name, folder in folders.items()}
    world, straight = open_world(settings, **stores), Database(url)
    model_id = world.live("crowd", guarantee="proved")
    with straight.write() as session:
        key = create_key(session, world.storage.pepper, label="drill", scopes=list(Scope))
    with TestClient(create_app(settings), raise_server_exceptions=False) as api:
        api.headers["Authorization"] = f"Bearer {key.secret}"
        yield Scene(world, api, model_id, chance, straight, between, disk)
    world.storage.close()
    straight.close()
