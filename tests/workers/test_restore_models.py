"""A model that ended, or whose policy changed, between a backup and its restore."""

from __future__ import annotations

from sqlalchemy import func, select

from service.infra.tables import Erasure, Model, StoredVector
from service.models.policy import change_policy
from service.models.retire import cancel_preparation, retire
from tests.faults.invariants import broken_after_restore
from tests.workers.test_restore import Snapshot, confirmed, export, signer, snapshot
from tests.workers.worlds import World
from workers.scheduler.restore import RestoreReport, restore

__all__ = ["snapshot"]
HOUR = 3_600


def restored(old: World, log: World) -> RestoreReport:
    report = restore(old.storage, old.settings.lease_seconds, signer(old), [export(log)])
    confirmed(old)
    return report


def test_a_model_that_was_retired_after_the_backup_is_retired_again(world: World, snapshot: Snapshot) -> None:
    """Its keys are destroyed, although the backup still has the rows of its vectors."""
    kept, gone = world.live(name="kept"), world.live(name="gone")
    old = snapshot(world)
    vectors = old.count(StoredVector)
    with world.database.write() as session:
        retire(session, session.get_one(Model, gone))
    report = restored(old, world)
    assert f"model.retired {gone}" in report.reapplied
    assert (old.model(gone).status, old.model(kept).status) == ("retired", "live")
    with old.database.read() as session:
        ordered = session.scalar(select(func.count()).select_from(Erasure))
    assert ordered and old.count(StoredVector) == vectors - ordered, (
        "the vectors go, and their keys are to be destroyed"
    )
    request = old.delete("p1")
    old.work(kept)
    assert old.request(request).status == "completed", "the retired model holds nothing up"
    assert broken_after_restore(old.database) == []


def test_a_preparation_that_was_cancelled_after_the_backup_is_cancelled_again(world: World, snapshot: Snapshot) -> None:
    world.live(name="kept")
    waiting = world.register(name="waiting")
    old = snapshot(world)
    with world.database.write() as session:
        cancel_preparation(session, session.get_one(Model, waiting))
    report = restored(old, world)
    assert f"model.cancelled {waiting}" in report.reapplied
    old.work(waiting)
    assert old.model(waiting).status == "cancelled", "no worker prepares it"
    assert broken_after_restore(old.database) == []


def test_a_policy_that_was_changed_after_the_backup_stands_again(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(cadence_seconds=60)
    old = snapshot(world)
    with world.database.write() as session:
        changes = {"cadence_seconds": 5, "retrain_every_seconds": HOUR}
        change_policy(session, session.get_one(Model, model_id), changes)
    report = restored(old, world)
    assert report.reapplied == [f"model.policy_changed {model_id}"]
    assert old.model(model_id).policy == world.model(model_id).policy
    assert old.model(model_id).policy["cadence_seconds"] == 5
    assert old.model(model_id).retrain_at is not None, "the next scheduled retrain is planned by it"
