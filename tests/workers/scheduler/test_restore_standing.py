"""What changed between a backup and its restore besides releases: legal holds, API keys, webhooks, models."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from sqlalchemy import select

from expunge_service.access.api_keys import NewKey, authenticate, create_key, revoke_key, rotate_key
from expunge_service.infra.pseudonyms import sample_digest, subject_digest
from expunge_service.infra.settings import session_key
from expunge_service.infra.tables import ApiKey, AuditEntry, Hold, Membership, Removal, Task, WebhookEndpoint
from expunge_service.infra.time import rfc_3339
from expunge_service.requests import legal_holds, webhooks
from expunge_workers.scheduler.restore import restore
from tests.faults.invariants import broken_after_restore
from tests.workers.scheduler.test_restore import Snapshot, confirmed, export, released, signer, snapshot
from tests.workers.worlds import TENANT, World

__all__ = ["snapshot"]
HOUR = 3_600_000_000


def place(world: World, subject: str) -> str:
    with world.database.write() as session:
        pepper = world.storage.pepper
        return legal_holds.place_hold(session, pepper, TENANT, subject_id=subject, sample_id=None, reason="court").id


def lift(world: World, hold: str) -> None:
    with world.database.write() as session:
        legal_holds.lift_hold(session, session.get_one(Hold, hold))


def in_force(world: World) -> set[str]:
    return {row.id for row in world.rows_of(Hold) if row.lifted_at is None}


def members(world: World, model_id: str, subject: str) -> set[int]:
    """The positions of the person in the model's generation that are not forgotten."""
    generation = world.generation(model_id).id
    digest = subject_digest(world.storage.pepper, TENANT, subject)
    with world.database.read() as session:
        theirs = select(Membership.position).where(
            Membership.generation_id == generation, Membership.subject_digest == digest
        )
        gone = select(Removal.position).where(Removal.generation_id == generation)
        return set(session.scalars(theirs)) - set(session.scalars(gone))


@pytest.mark.parametrize("with_log", [True, False])
def test_nobody_comes_back_whose_hold_was_lifted_after_the_backup(
    world: World, snapshot: Snapshot, with_log: bool
) -> None:
    model_id = world.live(guarantee="proved")
    hold = place(world, "p1")
    (request,) = released(world, model_id, "p1")
    assert (world.request(request).status, world.task(request).reason) == ("blocked", "legal_hold")
    old = snapshot(world)
    lift(world, hold)
    world.work(model_id)
    assert world.request(request).status == "completed"

    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)] if with_log else [])
    confirmed(old)

    assert old.request(request).status == "completed" and in_force(old) == set()
    assert f"hold.lifted {hold}" in report.reapplied
    later = old.live(name="later", leave_out_forgotten=True)
    assert members(old, later, "p1") == members(old, model_id, "p1") == set()
    assert broken_after_restore(old.database) == []


@pytest.mark.parametrize(("recipe", "where"), [("convex", "left out")])
def test_in_a_preparation_no_hold_keeps_somebody_who_was_forgotten_elsewhere(
    world: World, recipe: str, where: str
) -> None:
    model_id = world.live(guarantee="proved")
    (request,) = released(world, model_id, "p1")
    world.hold("p1")
    world.hold("p2")
    later = world.live(recipe, name="later", leave_out_forgotten=True)
    assert members(world, later, "p1") == set(), where
    assert members(world, later, "p2"), "a hold still keeps whoever was not forgotten"
    assert world.request(request).status == "completed"


def test_a_registration_that_would_bring_back_somebody_under_a_hold_is_refused(world: World) -> None:
    released(world, world.live(guarantee="proved"), "p1")
    world.hold("p1")
    later = world.register(name="later")
    world.work(later)
    assert world.model(later).status == "refused" and "asked to be forgotten" in (world.model(later).reason or "")


def test_holds_that_were_placed_after_the_backup_stand_again(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(guarantee="proved")
    old = snapshot(world)
    kept, lifted = place(world, "p1"), place(world, "p2")
    lift(world, lifted)
    with world.database.write() as session:
        pepper = world.storage.pepper
        by_sample = legal_holds.place_hold(session, pepper, TENANT, subject_id=None, sample_id="s3", reason="court").id
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)])
    confirmed(old)
    assert in_force(old) == {kept, by_sample} == set(report.holds_to_check) and report.holds_lost == []
    rows = {row.id: (row.subject_digest, row.sample_digest) for row in old.rows_of(Hold)}
    pepper = old.storage.pepper
    assert rows[kept] == (subject_digest(pepper, TENANT, "p1"), None)
    assert rows[by_sample] == (None, sample_digest(pepper, TENANT, "s3"))
    (request,) = released(old, model_id, "p1")
    assert (old.request(request).status, old.task(request).reason) == ("blocked", "legal_hold")


def test_the_log_names_nobody_who_is_held(world: World) -> None:
    """The same person held twice gives two texts that have nothing in common."""
    world.live(guarantee="proved")
    place(world, "p1")
    place(world, "p1")
    digest = subject_digest(world.storage.pepper, TENANT, "p1")
    with world.database.read() as session:
        bodies = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "hold.placed")).all()
    assert len({json.loads(body)["sealed"] for body in bodies}) == 2
    assert not any(digest in body or "p1" in json.loads(body)["sealed"] for body in bodies)


def test_a_hold_whose_text_was_moved_is_named(world: World, snapshot: Snapshot) -> None:
    world.live(guarantee="proved")
    old = snapshot(world)
    hold = place(world, "p1")
    with world.database.write() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.kind == "hold.placed")).one()
        other = json.loads(entry.body) | {"hold": "0" * 32}
        entry.body = json.dumps(other, sort_keys=True, separators=(",", ":"))
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)])
    assert report.holds_lost == ["0" * 32] and in_force(old) == set() and hold not in in_force(old)
    assert any("Place" in each for each in report.to_do)


@dataclass
class Doors:
    """Keys and webhooks as they were made before the backup."""

    keys: dict[str, NewKey]
    hook: str

    def open(self, world: World) -> set[str]:
        with world.database.read() as session:
            pepper = world.storage.pepper
            return {name for name, key in self.keys.items() if authenticate(session, pepper, key.secret)}


def doors(world: World) -> Doors:
    with world.database.write() as session:
        pepper = world.storage.pepper
        keys = {
            name: create_key(session, pepper, label=name, scopes=["audit:read"])
            for name in ("kept", "rotated", "overlapping", "revoked")
        }
        hook, _ = webhooks.add_endpoint(
            session, session_key(world.settings), TENANT, "https://example.com/x", list(webhooks.WebhookEvent)
        )
        return Doors(keys, hook.id)


def change(world: World, made: Doors) -> NewKey:
    """Everything that closes a door; returns the successor of the key that was rotated."""
    with world.database.write() as session:
        pepper = world.storage.pepper
        successor = rotate_key(session, pepper, made.keys["rotated"].id, 0)
        rotate_key(session, pepper, made.keys["overlapping"].id, HOUR)
        revoke_key(session, made.keys["revoked"].id)
        webhooks.disable_endpoint(session, session.get_one(WebhookEndpoint, made.hook))
    assert successor is not None
    return successor


@pytest.mark.both_engines
def test_no_door_that_was_closed_after_the_backup_is_open_after_the_restore(world: World, snapshot: Snapshot) -> None:
    world.live(guarantee="proved")
    made = doors(world)
    old = snapshot(world)
    successor = change(world, made)
    closes_at = world.rows_of(ApiKey)
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)])
    confirmed(old)
    assert made.open(old) == made.open(world) == {"kept", "overlapping"}
    ends = {row.id: row.expires_at for row in closes_at}
    assert {row.id: row.expires_at for row in old.rows_of(ApiKey)} == {
        key.id: ends[key.id] for key in made.keys.values()
    }
    assert [row.disabled_at is not None for row in old.rows_of(WebhookEndpoint)] == [True]
    assert successor.id in report.keys_lost and len(report.keys_lost) == 2
    told = next(each for each in report.to_do if successor.id in each)
    assert made.keys["rotated"].prefix in told and "expunge keys create" in told
    assert set(report.keys_to_check) == {made.keys[name].id for name in ("kept", "overlapping")}
    assert not report.webhooks_to_check


def test_without_a_log_everything_that_may_have_changed_is_named(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(guarantee="proved")
    made, hold, over = doors(world), place(world, "p1"), place(world, "p2")
    lift(world, over)
    old = snapshot(world)
    change(world, made)
    lift(world, hold)
    report = restore(old.storage, old.limits.lease_seconds, signer(old))
    assert (report.holds_to_check, report.webhooks_to_check) == ([hold], [made.hook])
    assert sorted(report.keys_to_check) == sorted(key.id for key in made.keys.values())
    told = " ".join(report.to_do)
    assert all(word in told for word in ("holds_to_check", "keys_to_check", "webhooks_to_check"))
    assert world.model(model_id).status == "live"


@pytest.mark.parametrize("with_log", [True, False])
def test_each_kind_of_thing_that_may_have_changed_unseen_has_its_line(
    world: World, snapshot: Snapshot, with_log: bool
) -> None:
    """What came after the last entry of the export is in no export, so an export leaves the same kinds in doubt."""
    world.live(guarantee="proved")
    place(world, "p1")
    old = snapshot(world)
    place(world, "p2")
    log = export(world)
    seen = world if with_log else old
    last = max(row.created_at for row in seen.rows_of(AuditEntry))
    world.delete("p3")
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [log] if with_log else [])
    assert report.unknown_from == rfc_3339(last)
    kinds = ("Requests", "Holds", "Keys", "Webhooks")
    lines = {kind: [line for line in report.to_do if line.startswith(f"{kind}:")] for kind in kinds}
    assert all(len(told) == 1 and rfc_3339(last) in told[0] for told in lines.values()), report.to_do


def test_what_a_repeated_restore_knows_already_is_told_once(world: World, snapshot: Snapshot) -> None:
    world.live(guarantee="proved")
    made = doors(world)
    old = snapshot(world)
    change(world, made)
    place(world, "p1")
    log = export(world)
    first, second = (restore(old.storage, old.limits.lease_seconds, signer(old), [log]) for _ in range(2))
    assert len(first.reapplied) == 5 and second.reapplied == [] and len(in_force(old)) == 1


def test_a_hold_that_a_later_release_shows_to_be_lifted_is_lifted_and_no_other(
    world: World, snapshot: Snapshot
) -> None:
    """p1 is gone from m and was held afterwards for the other model: that hold is newer than what m forgot."""
    model_id, other = world.live(guarantee="proved"), world.live(name="other", guarantee="proved")
    hold = place(world, "p2")
    old = snapshot(world)
    asked = world.delete("p1")
    world.work(model_id)
    newer = place(world, "p1")
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)])
    confirmed(old)
    assert in_force(old) == {hold, newer} and not [each for each in report.reapplied if "released" in each]
    old.work(other)
    (held,) = [task for task in old.rows_of(Task) if (task.request_id, task.model_id) == (asked, other)]
    assert (held.status, held.reason) == ("blocked", "legal_hold")


def test_whoever_a_hold_keeps_in_a_new_model_is_forgotten_there_once_it_is_lifted(world: World) -> None:
    """The request was made before the model was registered: it stays open until the new model has carried it out."""
    model_id = world.live(guarantee="proved")
    hold = place(world, "p1")
    (request,) = released(world, model_id, "p1")
    later = world.live(name="later", leave_out_forgotten=True)
    assert members(world, later, "p1"), "a hold keeps whoever was not forgotten anywhere"
    world.work(later)
    assert (world.request(request).status, len(world.rows_of(Task))) == ("blocked", 2)
    lift(world, hold)
    world.work(model_id)
    assert world.request(request).status == "queued"
    world.work(later)
    assert world.request(request).status == "completed"
    assert members(world, later, "p1") == members(world, model_id, "p1") == set()
