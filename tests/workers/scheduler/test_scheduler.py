"""The scheduler: repairs lost notifications, extends the log, purges what is retired, and never the current version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from expunge_service.audit import Witness
from expunge_service.infra.broker.notify import notify, publisher
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import Erasure, IdempotencyKey, Model, TreeHead, Version
from expunge_service.queue import Deletions
from expunge_workers.scheduler import run
from expunge_workers.storage import KeyStore, erase_due
from tests.harness.files import path_in
from tests.workers.worlds import World, seconds


def messages(world: World) -> int:
    return len(list((world.settings.home / "broker" / "messages").glob("*.msg")))


def test_it_runs_without_torch() -> None:
    code = "import sys, expunge_workers.scheduler.run, expunge_workers.main; sys.exit(int('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.both_engines
def test_only_one_is_active_until_its_lease_runs_out(world: World) -> None:
    assert run.hold_lease(world.database, "first", 30)
    assert not run.hold_lease(world.database, "second", 30)
    assert run.hold_lease(world.database, "first", -1)
    assert run.hold_lease(world.database, "second", 30)
    assert not run.hold_lease(world.database, "first", 30)


@pytest.mark.both_engines
def test_a_lost_notification_is_repaired_once_its_time_is_over(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    assert run.sweep(world.database, world.process.notifier) == 1
    assert run.sweep(world.database, world.process.notifier) == 0, "the notification is outstanding"
    assert messages(world) == 1
    world.change(Model, model_id, notified_at=world.model(model_id).notified_at - seconds(4))
    assert run.sweep(world.database, world.process.notifier) == 1
    world.work(model_id)
    assert run.sweep(world.database, world.process.notifier) == 0, "nothing waits"


def test_a_model_under_a_live_lease_is_left_alone_and_a_dead_workers_is_rung(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    assert isinstance(world.claim(model_id), Deletions)
    assert run.sweep(world.database, world.process.notifier) == 0
    world.expire_lease(model_id)
    assert run.sweep(world.database, world.process.notifier) == 1


def test_a_model_to_prepare_is_rung(world: World) -> None:
    world.register()
    assert run.sweep(world.database, world.process.notifier) == 1


def test_a_paused_model_is_rung_when_its_pause_is_over(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    with world.database.read() as session:
        later = now(session) + seconds(60)
    world.change(Model, model_id, due_at=later)
    assert run.sweep(world.database, world.process.notifier) == 0
    world.change(Model, model_id, due_at=1)
    assert run.sweep(world.database, world.process.notifier) == 1


def test_ten_requests_ring_once(world: World) -> None:
    model_id = world.live()
    for index in range(10):
        world.delete(f"p{index}")
        notify(world.database, world.process.notifier, [model_id])
    assert messages(world) == 1


def test_an_unreachable_broker_loses_no_request(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    dead = publisher("redis://127.0.0.1:1/0")
    notify(world.database, dead, [model_id])
    world.change(Model, model_id, notified_at=1)
    assert run.sweep(world.database, world.process.notifier) == 1
    world.work(model_id)
    assert world.request(request).status == "completed"


def test_retired_versions_are_purged_after_their_grace_and_never_the_head(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    store = world.storage.store
    assert run.purge(world.database, store, world.storage.guard.witness, grace_seconds=3600) == 0
    assert run.purge(world.database, store, world.storage.guard.witness, grace_seconds=0) == 1
    assert run.purge(world.database, store, world.storage.guard.witness, grace_seconds=0) == 0
    first, head = world.versions(model_id)
    assert (first.status, head.status) == ("purged", "current")
    assert first.purged_at is not None and not path_in(store, first.checkpoint).exists()
    assert store.read(head.checkpoint)
    assert world.kinds().count("version.purged") == 1


def test_a_file_that_a_living_version_shares_is_not_purged(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    first, head = world.versions(model_id)
    world.change(Version, first.id, checkpoint=head.checkpoint)
    run.purge(world.database, world.storage.store, world.storage.guard.witness, grace_seconds=0)
    assert world.storage.store.read(head.checkpoint)


def test_a_state_that_the_current_version_shares_is_never_deleted(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    first, current = world.versions(model_id)
    world.change(Version, first.id, state=current.state, state_deleted_at=None)
    assert erase_due(*places(world)) == 1
    assert world.storage.private.read(current.state)


def places(world: World) -> tuple[Database, Store, KeyStore, Witness]:
    storage = world.storage
    return storage.database, storage.private, storage.keys, storage.guard.witness


def test_an_erasure_that_a_dead_worker_left_is_carried_out_once(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    erasure = world.rows_of(Erasure)[0]
    world.change(Erasure, erasure.id, destroyed_at=None)
    assert erase_due(*places(world)) == 1
    assert erase_due(*places(world)) == 0
    assert world.storage.keys.fetch([erasure.key_id]) == {}


def test_a_tick_gives_every_audit_entry_its_place(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    chief = run.open_scheduler(world.settings)
    assert chief.tick() and chief.tick()  # the second one places what the first one wrote: the certificate was issued
    with world.database.read() as session:
        size = session.scalar(select(TreeHead.size).order_by(TreeHead.size.desc()).limit(1))
    assert size == len(world.kinds())


def test_a_duty_that_fails_keeps_no_other_from_being_done() -> None:
    done: list[str] = []

    def fails() -> None:
        raise ValueError("of no use")

    with pytest.raises(ExceptionGroup) as raised:
        run.carry_out([lambda: done.append("first"), fails, lambda: done.append("second"), fails])
    assert (done, len(raised.value.exceptions)) == (["first", "second"], 2)


def test_a_database_that_is_busy_postpones_the_rest() -> None:
    done: list[str] = []

    def busy() -> None:
        raise Busy("locked")

    with pytest.raises(Busy):
        run.carry_out([busy, lambda: done.append("second")])
    assert not done


def test_expired_answers_are_forgotten(world: World) -> None:
    with world.database.write() as session:
        for key, expires_at in (("old", 1), ("new", now(session) + seconds(60))):
            session.add(
                IdempotencyKey(
                    tenant_id="default",
                    actor_id="k",
                    key=key,
                    body_digest="0" * 64,
                    status_code=202,
                    headers={},
                    answer={},
                    expires_at=expires_at,
                )
            )
    assert run.expire_idempotency(world.database) == 1
    assert [row.key for row in world.rows_of(IdempotencyKey)] == ["new"]


def test_usage_is_told_for_wrong_arguments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "expunge_workers.main", "nonsense"], capture_output=True, check=False, cwd=Path.cwd()
    )
    assert (done.returncode, b"usage" in done.stderr) == (2, True)
