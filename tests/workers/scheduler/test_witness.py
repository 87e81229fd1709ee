"""The store is the witness of the database: one that was put back under running processes stops them."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from expunge_service.audit.log import UNSIGNED, extend, newest_head, record
from expunge_service.audit.signed_note import Signer
from expunge_service.audit.witness import DRAFT, RELEASE, Contradicted, Witness, WitnessedHead
from expunge_service.infra.db import Busy, now
from expunge_service.infra.tables import AuditEntry, Heartbeat, Lease, Model, SweptFile, Task, TreeHead
from expunge_service.models import model_lease, restore_guard
from expunge_service.models.restore_guard import Guard, PutBack
from expunge_service.queue import Deletions, Draft, Stale
from expunge_service.queue.leases import take
from expunge_workers.runtime.db_retry import retry
from expunge_workers.scheduler.run import LEASE, Scheduler, hold_lease, open_scheduler, sweep, sweep_files
from expunge_workers.update import draft
from tests.harness.files import root_of
from tests.workers.test_crashes import die_at
from tests.workers.worlds import TENANT, World, seconds

PutBackNow = Callable[[], None]


@pytest.fixture
def put_back(world: World, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], PutBackNow]]:
    """Takes a copy of the world's database; what it gives puts that copy in its place, under whoever is connected."""
    name = world.database.engine.url.database or ""
    copy = f"{name}_copy"

    def take_sqlite() -> PutBackNow:
        connection = sqlite3.connect(name)
        connection.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
        connection.close()
        return go_back_sqlite

    def go_back_sqlite() -> None:
        for ending in ("-wal", "-shm"):
            Path(name + ending).unlink(missing_ok=True)
        shutil.copy(tmp_path / "copy.db", tmp_path / "again.db")
        (tmp_path / "again.db").replace(name)

    def cloned(source: str, target: str) -> None:
        server = request.getfixturevalue("postgres_server")
        server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{source}'")
        server.execute(f'DROP DATABASE IF EXISTS "{target}" WITH (FORCE)')
        server.execute(f'CREATE DATABASE "{target}" TEMPLATE "{source}"')

    def take_postgres() -> PutBackNow:
        world.database.close()
        cloned(name, copy)
        return lambda: cloned(copy, name)

    yield take_sqlite if world.database.dialect == "sqlite" else take_postgres
    if world.database.dialect == "postgresql":
        request.getfixturevalue("postgres_server").execute(f'DROP DATABASE IF EXISTS "{copy}" WITH (FORCE)')


@pytest.fixture
def door(world: World) -> Iterator[TestClient]:
    """The API of the same installation, for a caller with every scope."""
    with world.database.write() as session:
        key = create_key(session, world.storage.pepper, label="all", scopes=list(Scope)).secret
        at = now(session)
        session.add(Heartbeat(process="w", kind="worker", software="1", started_at=at, beat_at=at + seconds(20)))
    with TestClient(create_app(world.settings), headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


@pytest.fixture
def scheduler(world: World) -> Scheduler:
    return open_scheduler(world.settings)


def download(door: TestClient) -> int:
    return door.get("/v1/models/m/versions/current/checkpoint").status_code


def ask(door: TestClient, person: str) -> int:
    body = {"subject_id": person}
    return door.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": person}).status_code


def later(call: Callable[[], int]) -> int:
    """A verdict is at most a second old, so this answer stands on a new one."""
    time.sleep(restore_guard.FRESH_SECONDS)
    return call()


@pytest.mark.both_engines
def test_a_database_that_went_back_under_running_processes_stops_all_of_them(
    world: World, put_back: Callable[[], PutBackNow], door: TestClient, scheduler: Scheduler
) -> None:
    model_id = world.live(guarantee="proved")
    world.delete("p1")
    world.work(model_id)
    retry(scheduler.tick)
    assert (ask(door, "p2"), download(door)) == (202, 200)
    go_back = put_back()
    worker = world.worker()
    worker.work(model_id)
    retry(scheduler.tick)
    waits = world.delete("p3")
    download(door)  # a connection that ended with its server costs a call
    assert world.head(model_id).number == 3 and later(lambda: download(door)) == 200
    job = world.claim(model_id, owner="busy")
    assert isinstance(job, Deletions)
    files = {path for path in root_of(world.storage.store).rglob("*") if path.is_file()}

    go_back()

    said = "The database lacks version 3 of m, which is in the store: it was put back, or a copy of it writes to this"
    assert later(lambda: ask(door, "p4")) == 503 and {download(door) for _ in range(3)} == {503}
    assert ask(door, "p4") == 503
    assert door.get("/readyz").json()["detail"].startswith(said)
    worker.work(model_id)
    with pytest.raises((PutBack, Stale)):
        worker._carry_out(job, 0.0)
    with pytest.raises(PutBack, match="lacks version 3 of m"):
        retry(scheduler.tick)
    assert world.head(model_id).number == 2
    with world.database.read() as session:
        head = newest_head(session)
        assert session.scalar(select(Task.status).where(Task.request_id == waits)) is None, "it was lost with the rest"
    with pytest.raises(Contradicted):
        retry(lambda: extend(world.database, Signer.of(world.settings), world.storage.guard.witness))
    with world.database.read() as session:
        assert newest_head(session).size == head.size, "nothing was signed in its place"  # type: ignore[union-attr]
    assert {path for path in root_of(world.storage.store).rglob("*") if path.is_file()} == files


def test_a_publication_asks_in_its_own_transaction_too(
    world: World, put_back: Callable[[], PutBackNow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool has connections to the server of before and to the new one: a look through one says nothing of another."""
    model_id = world.live(method="newton", guarantee="proved")
    monkeypatch.setattr("expunge_workers.app.erase_due", lambda *_: 0)  # else the update is blocked anyway
    world.delete("p1")
    go_back = put_back()
    world.work(model_id)
    world.storage.guard.look()
    go_back()
    world.database.close()
    job = world.claim(model_id)
    assert isinstance(job, Deletions)
    monkeypatch.setattr(Guard, "look", lambda *_: None)
    with pytest.raises(PutBack, match="lacks version 2 of m"):
        world.update(job)
    assert len(world.versions(model_id)) == 1


def test_two_databases_never_give_one_number_twice(
    world: World, put_back: Callable[[], PutBackNow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where nobody looks: a number that was drafted is never given again, and counts as charged."""
    model_id = world.live(method="newton", guarantee="proved")
    monkeypatch.setattr("expunge_workers.app.erase_due", lambda *_: 0)  # else the update is blocked anyway
    world.delete("p1")
    go_back = put_back()
    world.work(model_id)
    lost = world.head(model_id)
    go_back()
    world.database.close()
    monkeypatch.setattr(Guard, "look", lambda *_: None)
    monkeypatch.setattr(Guard, "still", lambda *_: None)
    world.work(model_id)
    assert (lost.number, world.head(model_id).number) == (2, 3)
    generation = world.generation(model_id)
    assert generation.spent == 2 * generation.budget_cost
    assert world.storage.guard.witness.drafted(model_id, 2) == lost.id


def test_another_head_is_never_signed_after_the_same_one_whatever_its_size(
    world: World, put_back: Callable[[], PutBackNow]
) -> None:
    """A file named by the size of a head would stop a fork of that very size alone."""
    signer, witness = Signer.of(world.settings), world.storage.guard.witness

    def grow(count: int) -> int:
        with world.database.write() as session:
            for _ in range(count):
                record(session, TENANT, "test.step")
        return extend(world.database, signer, witness)

    assert grow(10) == 10
    go_back = put_back()
    assert grow(5) == 5
    go_back()
    world.database.close()
    with pytest.raises(Contradicted):
        grow(2)
    with world.database.read() as session:
        assert [head.size for head in session.scalars(select(TreeHead).where(TreeHead.note != UNSIGNED))] == [10]
    assert witness.head_after(0, 10) is not None and witness.head_after(0, 12) is None


def test_a_head_whose_signer_died_before_its_signature_is_signed_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer, witness = Signer.of(world.settings), world.storage.guard.witness
    with world.database.write() as session:
        record(session, TENANT, "test.step")
    with monkeypatch.context() as away:
        away.setattr(Witness, "add_head", lambda *_: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            extend(world.database, signer, witness)
    with world.database.read() as session:
        assert newest_head(session) is None, "nothing is shown before the store has witnessed it"
    with world.database.write() as session:
        record(session, TENANT, "test.step")
    assert extend(world.database, signer, witness) == 1
    assert extend(world.database, signer, witness) == 1
    with world.database.read() as session:
        head = newest_head(session)
        assert head is not None and witness.last_head(0, 0) == WitnessedHead(2, head.root)
        assert signer.verifier.checkpoint(head.note).size == 2
        assert session.scalar(select(AuditEntry.id).where(AuditEntry.log_index.is_(None))) is None


@pytest.mark.parametrize("point", ["worker-after-commit", "version-noted"])
def test_a_version_whose_worker_died_after_the_commit_is_handed_out_once_the_store_says_so(
    world: World, door: TestClient, point: str
) -> None:
    model_id = world.live(guarantee="proved")
    world.delete("p1")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: other.work(model_id))
    assert world.head(model_id).number == 2 and world.storage.guard.witness.released(model_id, 2) is None
    assert download(door) == 200
    assert world.storage.guard.witness.released(model_id, 2) == world.head(model_id).id


@pytest.mark.parametrize("endings", [(DRAFT, RELEASE)])
def test_a_store_that_lacks_what_the_database_has_is_a_difference_too(
    world: World, door: TestClient, endings: tuple[str, ...]
) -> None:
    model_id = world.live(guarantee="proved")
    for ending in endings:
        (root_of(world.storage.store) / "updates" / f"{model_id}.1{ending}").unlink()
    assert (download(door), ask(door, "p1")) == (503, 503)
    assert door.get("/readyz").json()["detail"].startswith("The store lacks version 1 of m")


def test_while_the_store_is_away_requests_are_taken_in_and_nothing_else_happens(
    world: World, door: TestClient, scheduler: Scheduler, tmp_path: Path
) -> None:
    model_id = world.live(guarantee="proved")
    retry(scheduler.tick)
    with world.database.read() as session:
        head = newest_head(session)
    store = root_of(world.storage.store)
    hidden = store.rename(tmp_path / "hidden")
    store.write_text("not a folder")
    assert (ask(door, "p1"), download(door)) == (202, 503)
    world.work(model_id)
    retry(scheduler.tick)
    with world.database.read() as session:
        waiting = session.scalars(select(Task)).one()
        assert (waiting.status, waiting.attempts, newest_head(session).size) == ("queued", 0, head.size)  # type: ignore[union-attr]
    store.unlink()
    hidden.rename(store)
    world.work(model_id)
    retry(scheduler.tick)
    assert later(lambda: download(door)) == 200 and world.head(model_id).number == 2
    with world.database.read() as session:
        assert newest_head(session).size > head.size  # type: ignore[union-attr]


def test_no_folder_is_listed_where_calls_wait(world: World, door: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    world.live(guarantee="proved")
    assert door.get("/readyz").status_code == 200
    monkeypatch.setattr(type(world.storage.store.folder), "entries", lambda _: 1 / 0)
    monkeypatch.setattr(restore_guard, "FRESH_SECONDS", 0.0)
    for _ in range(3):
        assert (door.get("/readyz").status_code, download(door)) == (200, 200)


def test_a_token_is_never_given_again_by_a_database_that_lost_the_claim(world: World) -> None:
    model_id = world.live()
    world.delete("p1")
    lost, token = world.claim(model_id, owner="lost"), world.lease(model_id).token
    world.change(Lease, model_lease(model_id), token=0, expires_at=0)
    again = world.claim(model_id, owner="again")
    assert isinstance(lost, Deletions) and isinstance(again, Deletions)
    assert token == lost.lease.token != again.lease.token
    with pytest.raises(Stale):
        world.update(lost)
    assert len(world.versions(model_id)) == 1


@pytest.mark.both_engines
def test_a_worker_that_slept_between_its_files_and_its_transaction_publishes_no_version_without_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p1")
    drafted = draft.write_draft

    def sleep_then(*arguments: object, **named: object) -> Draft:
        written = drafted(*arguments, **named)  # type: ignore[arg-type]
        sweep_files(world.database, world.storage.store, world.storage.private, older_than=-5)
        return written

    with monkeypatch.context() as slept:
        slept.setattr("expunge_workers.update.run.write_draft", sleep_then)
        world.work(model_id)
    assert world.head(model_id).number == 1
    assert world.count(SweptFile) == 2
    world.expire_lease(model_id)
    world.work(model_id)
    head = world.head(model_id)
    assert (world.request(request).status, head.number) == ("completed", 2)
    assert world.storage.store.read(head.checkpoint) and world.storage.private.read(head.state)


def test_a_file_that_a_version_names_by_now_is_not_swept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep finds an orphan, a publication names it, and then the sweep takes the lock."""
    model_id = world.live(guarantee="proved")
    current = world.head(model_id)
    monkeypatch.setattr("expunge_workers.scheduler.run._prepared", lambda _: set())
    found = type(world.storage.store).orphans
    monkeypatch.setattr(type(world.storage.store), "orphans", lambda store, _, older_than: found(store, (), older_than))
    sweep_files(world.database, world.storage.store, world.storage.private, older_than=-5)
    assert world.storage.store.holds(current.checkpoint) and world.storage.private.holds(current.state)


@pytest.mark.both_engines
def test_a_lease_of_a_clock_that_jumped_ahead_is_over_when_the_clock_is_back(world: World) -> None:
    model_id = world.live()
    request = world.delete("p1")
    ahead = seconds(7200)
    with world.database.write() as session:
        at = now(session)
        for name in (model_lease(model_id), LEASE):
            assert take(session, name, "of two hours ahead", at + ahead, 30.0)
        session.get_one(Model, model_id).notified_at = at + ahead
    assert hold_lease(world.database, "new", 30.0)
    assert sweep(world.database, world.process.notifier) == 1, "its worker is notified"
    world.work(model_id)
    assert world.request(request).status == "completed"


def test_a_lease_in_force_is_nobody_elses(world: World) -> None:
    model_id = world.live()
    world.delete("p1")
    assert world.claim(model_id, owner="first") is not None
    assert world.claim(model_id, owner="second") is None
    assert hold_lease(world.database, "one", 30.0) and not hold_lease(world.database, "two", 30.0)


def test_a_version_of_an_older_release_is_known_by_the_file_that_it_left(world: World) -> None:
    model_id = world.live(guarantee="proved")
    updates = root_of(world.storage.store) / "updates"
    version = world.head(model_id)
    (updates / f"{model_id}.1{DRAFT}").rename(updates / f"{version.id}{RELEASE}")
    (updates / f"{model_id}.1{RELEASE}").unlink()
    Guard(world.database, world.storage.store.folder).look()
    assert world.storage.guard.witness.released(model_id, 1) == version.id


def test_a_store_that_hangs_delays_a_call_and_stops_none(
    world: World, door: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.live(guarantee="proved")
    answers = threading.Event()
    monkeypatch.setattr(restore_guard, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(Witness, "epoch", lambda *_: answers.wait(20) and 1 / 0)
    try:
        assert (ask(door, "p1"), download(door)) == (202, 503)
    finally:
        answers.set()


def test_a_database_that_cannot_be_compared_takes_nothing_in(
    world: World, door: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the one of before, or one that was put back: a connection that a proxy kept says nothing of it."""
    world.live(guarantee="proved")

    def away(*_: object) -> None:
        raise Busy

    monkeypatch.setattr(restore_guard, "_current", away)
    assert (ask(door, "p1"), download(door)) == (503, 503)
