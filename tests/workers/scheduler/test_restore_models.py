"""A model that ended, or whose policy changed, between a backup and its restore."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from expunge_service.infra.tables import Erasure, Hold, Model, StoredVector
from expunge_service.models.policy import change_policy
from expunge_service.models.retirement import retire
from expunge_service.requests.legal_holds import lift_hold
from expunge_service.requests.states import RequestRefused
from expunge_workers.scheduler import run
from expunge_workers.scheduler.restore import RestoreReport, restore
from expunge_workers.storage.crypto_erase import erase_lost
from tests.faults.invariants import broken_after_restore
from tests.workers.scheduler.test_restore import Snapshot, confirmed, export, released, retrained, signer, snapshot
from tests.workers.worlds import World

__all__ = ["snapshot"]
HOUR = 3_600


def restored(old: World, log: World) -> RestoreReport:
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(log)])
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
        retire(session, session.get_one(Model, waiting))
    report = restored(old, world)
    assert f"model.cancelled {waiting}" in report.reapplied
    old.work(waiting)
    assert old.model(waiting).status == "cancelled", "no worker prepares it"
    assert broken_after_restore(old.database) == []


def test_a_policy_that_was_changed_after_the_backup_stands_again(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(batch=60)
    old = snapshot(world)
    with world.database.write() as session:
        changes = {"batch": 5, "retrain_every": HOUR}
        change_policy(session, session.get_one(Model, model_id), changes)
    report = restored(old, world)
    assert report.reapplied == [f"model.policy_changed {model_id}"]
    assert old.model(model_id).policy == world.model(model_id).policy
    assert old.model(model_id).policy["batch"] == 5
    assert old.model(model_id).retrain_at is not None, "the next scheduled retrain is planned by it"


@pytest.mark.both_engines
def test_a_generation_of_a_lost_model_gives_its_number_spending_and_keys_to_nobody(
    world: World, snapshot: Snapshot
) -> None:
    """The recipe is registered again, as the report asks. The lost keys are destroyed after the confirmation."""
    world.live(name="kept", guarantee="proved")
    old = snapshot(world)
    lost = world.generation(world.live(name="lost", guarantee="proved"))
    released(world, lost.model_id, "p1")
    keys = old.storage.keys
    assert lost.id in keys.generations()

    report = restore(old.storage, old.limits.lease_seconds, signer(old))
    assert report.retired == ["lost"]
    assert erase_lost(old.database, keys) == 0, "not before the operator has confirmed that this backup is the one"
    confirmed(old)
    again = old.live(name="again", leave_out_forgotten=True, guarantee="proved")
    assert old.generation(again).id > lost.id
    assert erase_lost(old.database, keys) == 1
    assert keys.generations() == {old.generation(again).id, old.generation(old.model_named("kept")).id}
    restore(old.storage, old.limits.lease_seconds, signer(old))
    assert old.generation(again).spent == 0, "the lost model's updates are not charged to another"
    confirmed(old)
    released(old, again, "p2")
    assert [version.number for version in old.versions(again)] == [1, 2]


@pytest.mark.both_engines
def test_what_a_restore_retires_is_destroyed(world: World, snapshot: Snapshot) -> None:
    """The backup has the vectors and keys of a generation that a retrain has replaced."""
    model_id = world.live(guarantee="proved")
    old = snapshot(world)
    world.delete("p1")
    retrained(world, model_id)
    report = restore(old.storage, old.limits.lease_seconds, signer(old))
    confirmed(old)
    assert report.retired == ["m"] and old.generation(model_id).status == "ended"
    assert old.count(StoredVector) == 0
    keeper = run.open_scheduler(old.settings)
    keeper.tick()
    keeper.database.close()
    assert old.storage.keys.generations() == set()
    assert not old.storage.private.holds(old.head(model_id).state)


def test_what_a_legal_hold_keeps_in_a_model_that_a_restore_retires_stays_until_the_hold_is_over(
    world: World, snapshot: Snapshot
) -> None:
    model_id = world.live(guarantee="proved")
    world.hold("p7")
    old = snapshot(world)
    world.delete("p1")
    retrained(world, model_id)
    report = restore(old.storage, old.limits.lease_seconds, signer(old))
    confirmed(old)
    (hold,) = old.rows_of(Hold)
    assert report.kept == {"m": [hold.id]} and any("Model m is retired" in line for line in report.to_do)
    assert old.count(StoredVector) and old.count(Erasure) == 0
    with old.database.write() as session:
        with pytest.raises(RequestRefused, match="legal hold"):
            retire(session, session.get_one(Model, model_id))
        lift_hold(session, session.get_one(Hold, hold.id))
        retire(session, session.get_one(Model, model_id))
    assert old.count(StoredVector) == 0 and old.count(Erasure) and old.generation(model_id).status == "ended"


def test_served_versions_whose_files_are_gone_are_named(world: World, snapshot: Snapshot) -> None:
    """A scheduler on the older database takes the files of the versions that it lacks for nobody's."""
    whole, swept, without_state = (world.live(name=name, guarantee="proved") for name in ("whole", "swept", "bare"))
    old = snapshot(world)
    for model_id, person in ((whole, "p1"), (swept, "p2"), (without_state, "p3")):
        asked = world.delete(person, models=(world.model(model_id).name,))
        world.work(model_id)
        assert world.request(asked).status == "completed"
    world.storage.store.delete(world.head(swept).checkpoint)
    world.storage.private.delete(world.head(without_state).state)
    report = restore(old.storage, old.limits.lease_seconds, signer(old))
    assert report.files_missing == ["bare/2", "swept/2"]
    assert any("files_missing" in line for line in report.to_do)
