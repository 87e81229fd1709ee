"""A database restored from an old backup, while checkpoints, journal and the exported audit log are newer."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, select
from typer.testing import CliRunner

from expunge_client import verify_certificate
from expunge_client.cli import output
from expunge_client.cli.client import Account, Client
from expunge_client.cli.main import app
from expunge_client.cli.output import CommandError
from expunge_service.access.api_keys import Scope, authenticate, create_key, revoke_key
from expunge_service.app import create_app
from expunge_service.audit import merkle
from expunge_service.audit.key_rotation import FOLDER, handovers, keep_handovers
from expunge_service.audit.log import charge, newest_head
from expunge_service.audit.self_check import check_log
from expunge_service.audit.signed_note import NotAuthentic, Signer, Verifier
from expunge_service.audit.succession import predecessors, signatures
from expunge_service.audit.verification import verify
from expunge_service.audit.witness import EPOCHS, NEWEST, Witness, WitnessedHead, epoch_of
from expunge_service.certificates.envelope import verify as verified
from expunge_service.certificates.issue import issue_due
from expunge_service.cli import log_check
from expunge_service.cli.checks import examine as doctor
from expunge_service.cli.commands.backups import restore as command
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    Certificate,
    DeletionRequest,
    Generation,
    Heartbeat,
    Hold,
    LogCheck,
    Membership,
    Model,
    Removal,
    Restoration,
    Spelling,
    StoredVector,
    SuppressionEntry,
    Task,
    Version,
)
from expunge_service.models import restore_guard
from expunge_service.models.budgets import USAGE
from expunge_service.models.restore_guard import FRESH_SECONDS, PutBack
from expunge_service.queue import end_without_version
from expunge_service.requests import identity_check, legal_holds, spelling_decisions, suppression
from expunge_service.requests.cancellation import cancel
from expunge_service.requests.intake import NO_WINDOWS
from expunge_workers.scheduler import run
from expunge_workers.scheduler.restore import restore
from tests.faults.invariants import broken_after_restore
from tests.harness import log_tree
from tests.harness.files import root_of
from tests.workers.test_crashes import die_at
from tests.workers.worlds import TENANT, World, open_world

Snapshot = Callable[[World], World]


@pytest.fixture
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Snapshot]:
    """Takes a backup of a world's database; the world that it gives has this database, and the files of the other."""
    opened: list[World] = []

    def take(world: World) -> World:
        if world.database.dialect == "sqlite":
            target = tmp_path / f"backup-{len(opened)}.db"
            connection = sqlite3.connect(tmp_path / "expunge.db")
            connection.execute("VACUUM INTO ?", (str(target),))
            connection.close()
            url = f"sqlite:///{target}"
        else:
            server = request.getfixturevalue("postgres_server")
            name = f"backup_{tmp_path.name[-20:].lower().replace('-', '_')}_{len(opened)}"
            world.database.close()
            server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{world.database.engine.url.database}"')
            request.addfinalizer(lambda: server.execute(f'DROP DATABASE "{name}" WITH (FORCE)'))
            url = server.url(name)
        opened.append(open_world(world.settings.model_copy(update={"database_url": url})))
        return opened[-1]

    yield take
    for world in opened:
        world.storage.close()


def signer(world: World) -> Signer:
    return Signer.of(world.settings)


def export(world: World) -> tuple[str, list[dict[str, Any]]]:
    run.extend_log(world.database, signer(world), world.storage.guard.witness)
    with world.database.read() as session:
        head = newest_head(session)
        rows = session.scalars(
            select(AuditEntry).where(AuditEntry.log_index.is_not(None)).order_by(AuditEntry.log_index)
        )
        assert head is not None
        return head.note, [{"index": row.log_index, "leaf_hash": row.leaf_hash, "body": row.body} for row in rows]


def state(world: World, model_id: str) -> dict[str, Any]:
    """Everything that must not be rewound."""
    generation = world.generation(model_id)
    return {
        "versions": [(v.number, v.id, v.status, v.checkpoint, v.parent_id) for v in world.versions(model_id)],
        "usage": (generation.report or {})[USAGE],
        "spent": (generation.spent, sum(row.budget_cost for row in world.rows_of(BudgetEntry))),
        "forgotten": sorted((row.generation_id, row.position, row.version_id) for row in world.rows_of(Removal)),
        "vectors": sorted(row.holder for row in world.rows_of(StoredVector)),
    }


def requests(world: World) -> dict[str, tuple[str, int | None]]:
    return {row.id: (row.status, row.completed_at) for row in world.rows_of(DeletionRequest)}


def released(world: World, model_id: str, *people: str) -> list[str]:
    ids = [world.delete(person) for person in people]
    world.work(model_id)
    return ids


def retrained(world: World, model_id: str) -> None:
    """What waits is carried out by a retrain: the budget is spent."""
    with world.database.write() as session:
        generation = session.get_one(Generation, world.generation(model_id).id)
        charge(session, generation.id, None, (generation.budget or 0) - generation.spent)
        model = session.get_one(Model, model_id)
        model.status, model.policy = "exhausted", model.policy | {"fallback": "retrain"}
    world.work(model_id)


def differs(world: World) -> str:
    """In what the world's database and its store differ; empty where they do not."""
    try:
        restore_guard.Guard(world.database, world.storage.store.folder).look()
    except PutBack as error:
        return str(error)
    return ""


def confirmed(world: World) -> None:
    witness = Witness(world.storage.store.folder)
    with world.database.write() as session:
        assert restore_guard.confirm(session, TENANT, witness) is not None
        assert restore_guard.confirm(session, TENANT, witness) is None


@pytest.mark.parametrize("with_log", [True, False])
def test_what_was_released_since_the_backup_is_taken_up(world: World, snapshot: Snapshot, with_log: bool) -> None:
    model_id = world.live(guarantee="proved")
    released(world, model_id, "p1")
    run.extend_log(world.database, signer(world), world.storage.guard.witness)
    open_then = world.delete("p2")
    old = snapshot(world)
    world.work(model_id)
    since = released(world, model_id, "p3", "p4")
    lost = world.delete("p5")
    log = export(world)
    known = {key: value for key, value in requests(world).items() if key != lost}
    assert "version 3 of m" in differs(old) or "version 4 of m" in differs(old)
    assert state(old, model_id) != state(world, model_id)
    with old.database.write() as session:
        session.add(Heartbeat(process="of before", kind="worker", software="1", started_at=1, beat_at=1))

    report = restore(old.storage, old.limits.lease_seconds, signer(old), [log] if with_log else [])

    with old.database.read() as session:
        assert session.scalars(select(Heartbeat)).all() == [], "a process of the backup is none that is silent now"
    assert state(old, model_id) == state(world, model_id)
    assert requests(old) == known
    assert (report.versions, sorted(report.requests)) == (["m/3", "m/4"], sorted(since))
    assert old.claims_logged(model_id) == 4
    assert open_then not in report.requests and report.retired == report.forgotten_again == []
    assert report.requests_lost == ([lost] if with_log else [])
    assert report.unknown_from is not None and report.unknown_from < report.unknown_until
    assert "p5" not in repr(report) and (report.log_entries is None) is (not with_log)
    confirmed(old)
    assert differs(old) == ""


@pytest.mark.both_engines
def test_the_log_goes_on_where_it_was_and_contradicts_no_signed_head(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(guarantee="proved")
    run.extend_log(world.database, signer(world), world.storage.guard.witness)
    old = snapshot(world)
    released(world, model_id, "p1")
    log = export(world)
    restore(old.storage, old.limits.lease_seconds, signer(old), [log])
    confirmed(old)
    released(old, model_id, "p2")
    head, lines = export(old)
    assert verify(lines, head, signer(old).verifier, [log[0]]).size > len(log[1])
    assert old.kinds().count("version.published") == 3 and "version.restored" not in old.kinds()


def rotated(world: World, monkeypatch: pytest.MonkeyPatch) -> Verifier:
    """The command as an operator runs it; returns the key in use from now on."""
    for name in ("home", "store", "secrets"):
        monkeypatch.setenv(f"EXPUNGE_{name.upper()}", str(getattr(world.settings, name)))
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", world.database.engine.url.render_as_string(hide_password=False))
    done = CliRunner().invoke(app, ["audit", "rotate-key"])
    assert done.exit_code == 0, (done.output, done.exception)
    return signer(world).verifier


def certificates(world: World) -> list[dict[str, Any]]:
    """Certify what is due; return all certificates."""
    run.extend_log(world.database, signer(world), Witness(world.storage.store.folder))
    run.issue(world.database, signer(world), world.storage.pepper)
    return [json.loads(row.envelope or "null") for row in world.rows_of(Certificate) if row.envelope]


@pytest.mark.both_engines
@pytest.mark.parametrize("rotations", [1, 2])
@pytest.mark.parametrize("log", ["no export", "an export of before", "an export of after"])
def test_a_restore_across_a_rotation_raises_no_alarm_and_old_certificates_verify(
    world: World, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, rotations: int, log: str
) -> None:
    """The database is put back to before the rotation. The store holds the handover; the retired key is gone."""
    model_id = world.live(guarantee="proved")
    released(world, model_id, "p1")
    (before,) = certificates(world)
    check_log(world.database, signer(world).verifier)
    old, first = snapshot(world), signer(world).verifier
    world.delete("p3")
    exports = [export(world)] if log == "an export of before" else []
    for _ in range(rotations):
        newest = rotated(world, monkeypatch)
        world.delete(f"p{4 + _}")
    exports = [export(world)] if log == "an export of after" else exports
    restore(old.storage, old.limits.lease_seconds, signer(old), exports)
    restore(old.storage, old.limits.lease_seconds, signer(old), exports)  # repeatable
    check_log(old.database, newest)  # the scheduler's check may come before its first signature
    confirmed(old)
    released(old, model_id, "p2")
    after = certificates(old)
    check_log(old.database, newest)
    assert [row.fault for row in old.rows_of(LogCheck)] == [None]
    head, lines = export(old)
    log = "\n".join(json.dumps(line) for line in [*lines, {"checkpoint": head}])
    assert len(after) >= 2 and sum("log.key_rotated" in line["body"] for line in lines) == rotations
    for trusted in (first, newest):
        for certificate in (before, *after):
            verify_certificate(certificate, str(trusted), log=log)


def test_a_restore_believes_no_handover_that_the_key_in_use_did_not_acknowledge(
    world: World, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes into the store, and owns a key that was retired, or one of their own."""
    model_id = world.live(guarantee="proved")
    released(world, model_id, "p1")
    run.extend_log(world.database, signer(world), Witness(world.storage.store.folder))
    old, stolen = snapshot(world), signer(world)
    rotated(world, monkeypatch)
    current, thief = signer(world), Signer(world.settings.log_origin, b"t" * 32)
    folder = world.storage.store.folder.inside(FOLDER)
    (real,) = (each.name for each in folder.entries())
    folder.delete([real])
    for size, facts in {
        "90.aa": signatures(stolen, thief),
        "91.aa": signatures(thief, thief) | {"key": str(current.verifier)},
        "92.aa": signatures(stolen, thief) | {"key": str(current.verifier)},
        "93.aa": {},
    }.items():
        folder.create(size, json.dumps({"kind": "log.key_rotated", **facts}).encode())
    folder.create("94.aa", b"\xff")
    with world.database.read() as session:
        keep_handovers(session, world.storage.store.folder)
    believed = predecessors(current.verifier, handovers(world.storage.store.folder))
    assert [each.retired for each in believed] == [stolen.verifier]
    forged = [*export(world)[1]]
    more = [*forged, {"index": len(forged), "leaf_hash": merkle.leaf_hash(b"{}").hex(), "body": "{}"}]
    for liar in (stolen, thief):
        head = liar.checkpoint(len(more), log_tree.root_of([bytes.fromhex(line["leaf_hash"]) for line in more]))
        with pytest.raises(NotAuthentic):
            restore(old.storage, old.limits.lease_seconds, current, [(head, more)])
    assert old.count(Restoration) == 0


def test_exports_are_compared_by_the_heads_that_sign_for_them(world: World, snapshot: Snapshot) -> None:
    """More lines than a head signs for are nobody's word, however many there are."""
    world.live(guarantee="proved")
    old, shorter = snapshot(world), export(world)
    asked = world.delete("p1")
    longer = export(world)
    text = json.dumps({"kind": "hold.placed"})
    line = {"leaf_hash": merkle.leaf_hash(text.encode()).hex(), "body": text}
    padded = [*shorter[1], *({"index": len(shorter[1]) + place, **line} for place in range(9))]
    for exports in ([(shorter[0], padded)], [longer, (shorter[0], padded)], [(longer[0], longer[1][:-1])]):
        with pytest.raises(NotAuthentic):
            restore(old.storage, old.limits.lease_seconds, signer(old), exports)
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [shorter, longer, shorter])
    assert report.requests_lost == [asked]


def test_nothing_is_claimed_and_nothing_kept_until_the_operator_confirms(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(guarantee="proved")
    waiting = world.delete("p1")
    old = snapshot(world)
    restore(old.storage, old.limits.lease_seconds, signer(old), [])
    for _ in range(2):
        old.work(model_id)
        assert old.task(waiting).status == "queued" and len(old.versions(model_id)) == 1
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [])
    assert report.versions == [] and old.count(Restoration) == 1, "repeated, it is one restoration"
    confirmed(old)
    old.work(model_id)
    assert old.request(waiting).status == "completed" and len(old.versions(model_id)) == 2


@pytest.mark.both_engines
def test_what_the_log_tells_is_done_again(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(guarantee="proved")
    (gone,) = released(world, model_id, "p1")
    keep, stolen = ("audit:read", "models:read")
    with world.database.write() as session:
        keys = {name: create_key(session, world.storage.pepper, label=name, scopes=[name]) for name in (keep, stolen)}
    old = snapshot(world)
    with world.database.write() as session:
        suppression.lift_suppression(session, session.get_one(DeletionRequest, gone), "deleted by mistake")
        revoke_key(session, keys[stolen].id)
    with world.database.write() as session:
        hold = legal_holds.place_hold(
            session, world.storage.pepper, TENANT, subject_id="p7", sample_id=None, reason="court"
        ).id
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)])
    assert report.holds_lost == [] and [row.id for row in old.rows_of(Hold)] == [hold]
    assert sorted(each.split()[0] for each in report.reapplied) == ["hold.placed", "key.revoked", "suppression.lifted"]
    with old.database.read() as session:
        assert authenticate(session, old.storage.pepper, keys[stolen].secret) is None
        assert authenticate(session, old.storage.pepper, keys[keep].secret) is not None
    confirmed(old)


@pytest.mark.parametrize("with_log", [True, False])
def test_what_was_decided_since_the_backup_on_unverified_requests_stays_decided(
    world: World, snapshot: Snapshot, with_log: bool
) -> None:
    model_id = world.live(guarantee="proved")
    done, asked, refused, gone, open_still = (world.stranger(f"p{number}") for number in range(5))
    old = snapshot(world)
    world.verify(done)
    world.work(model_id)
    world.verify(asked)
    with world.database.write() as session:
        identity_check.reject(session, session.get_one(DeletionRequest, refused), "told by phone")
        cancel(session, session.get_one(DeletionRequest, gone))
    log = export(world)
    restore(old.storage, old.limits.lease_seconds, signer(old), [log] if with_log else [])
    confirmed(old)
    stands = {name: old.request(each).status for name, each in (("done", done), ("asked", asked))}
    stands |= {"refused": old.request(refused).status, "gone": old.request(gone).status}
    known = {"asked": "queued", "refused": "rejected", "gone": "cancelled"}
    assert stands == {"done": "completed"} | (known if with_log else dict.fromkeys(known, "blocked"))
    in_force = {row.request_id for row in old.rows_of(SuppressionEntry) if row.lifted_at is None}
    assert in_force == ({done, asked} if with_log else {done}), "a released one is in the journal too"
    old.work(model_id)
    assert old.request(asked).status == ("completed" if with_log else "blocked")
    assert old.request(open_still).status == "blocked" and broken_after_restore(old.database) == []


@pytest.mark.parametrize("with_log", [True, False])
def test_what_was_decided_since_the_backup_about_misspelled_ids_stays_decided(
    world: World, snapshot: Snapshot, with_log: bool
) -> None:
    model_id = world.live(guarantee="proved")
    done, named, denied, gone, open_still = (world.delete(f"P{number}") for number in range(1, 6))
    waits = ("blocked", "near_miss")
    assert {(world.request(each).status, world.request(each).reason) for each in (done, open_still)} == {waits}
    old = snapshot(world)
    before = spellings(old)
    assert len(before[SuppressionEntry]) == 5 and before[Spelling]
    same_person(world, done, "p1")
    world.work(model_id)
    same_person(world, named, "p2")
    with world.database.write() as session:
        spelling_decisions.other_person(session, session.get_one(DeletionRequest, denied), NO_WINDOWS)
        cancel(session, session.get_one(DeletionRequest, gone))
        legal_holds.place_hold(session, world.storage.pepper, TENANT, subject_id="P 7", sample_id=None, reason="court")
    held = [row.spelling for row in world.rows_of(Hold)]
    log = export(world)
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [log] if with_log else [])
    confirmed(old)
    assert report.ids_lost == ([named] if with_log else []), "the log has no ids"
    assert old.request(done).status == "completed"
    known = {denied: ("completed", "no_match"), gone: ("cancelled", None)} if with_log else {}
    for request in (named, denied, gone, open_still):
        row = old.request(request)
        assert (row.status, row.reason) == known.get(request, waits)
        assert (row.near is None) == (request in known)
    assert before[SuppressionEntry] <= spellings(old)[SuppressionEntry] and spellings(old)[Spelling] == before[Spelling]
    assert [row.spelling for row in old.rows_of(Hold)] == (held if with_log else []) and held[0] is not None
    assert broken_after_restore(old.database) == []
    same_person(old, open_still, "p5")
    assert old.request(open_still).status == "queued", "its forms are compared as before"


def entries(world: World, request_id: str) -> set[tuple[str | None, bool]]:
    """Return whom a request's suppression entries name, and whether they are in force."""
    rows = world.rows_of(SuppressionEntry)
    return {(row.subject_digest, row.lifted_at is None) for row in rows if row.request_id == request_id}


@pytest.mark.parametrize("accepted", ["before the backup", "after it"])
@pytest.mark.parametrize("with_log", [True, False])
def test_who_was_deleted_under_a_misspelled_id_since_the_backup_stays_out_of_every_training(
    world: World, snapshot: Snapshot, with_log: bool, accepted: str
) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("P1") if accepted == "before the backup" else ""
    old = snapshot(world)
    request = request or world.delete("P1")
    same_person(world, request, "p1")
    world.work(model_id)
    restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)] if with_log else [])
    confirmed(old)
    assert old.request(request).status == "completed" and old.request(request).near is None
    assert entries(old, request) == entries(world, request) and len(entries(old, request)) == 2
    old.delete("p2")
    retrained(old, model_id)
    assert old.generation(model_id).id != world.generation(model_id).id
    right = subject_digest(old.storage.pepper, TENANT, "p1")
    served = {row.subject_digest for row in old.rows_of(Membership) if row.generation_id == old.generation(model_id).id}
    assert served and right not in served
    assert broken_after_restore(old.database) == []


@pytest.mark.parametrize("with_log", [True, False])
def test_a_registration_near_a_suppressed_id_is_asked_about_again_after_a_restore(
    world: World, snapshot: Snapshot, with_log: bool
) -> None:
    """The model and the answer came after the backup; the request of before is in force, and asks once more."""
    request = world.delete("P1")
    old = snapshot(world)
    world.work(world.register())
    same_person(world, request, "p1")
    assert world.request(request).near is None and len(entries(world, request)) == 2
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)] if with_log else [])
    confirmed(old)
    assert report.ids_lost == ([request] if with_log else [])
    assert old.request(request).status == "completed" and len(entries(old, request)) == 1
    again = old.register(name="again")
    old.work(again)
    assert old.model(again).status == "refused"
    assert (old.request(request).status, old.request(request).reason) == ("blocked", "near_miss")
    same_person(old, request, "p1")
    later = old.register(name="later", leave_out_forgotten=True)
    old.work(later)
    assert old.model(later).status == "live"
    right = subject_digest(old.storage.pepper, TENANT, "p1")
    assert right not in {row.subject_digest for row in old.rows_of(Membership)}


def spellings(world: World) -> dict[type[Any], set[Any]]:
    """What is kept of how ids are written: of each suppression entry, and of each person of a generation."""
    entries = {(row.id, json.dumps(row.spelling, sort_keys=True)) for row in world.rows_of(SuppressionEntry)}
    return {SuppressionEntry: entries, Spelling: {(row.form, row.person) for row in world.rows_of(Spelling)}}


def same_person(world: World, request_id: str, right: str) -> None:
    with world.database.write() as session:
        request = session.get_one(DeletionRequest, request_id)
        spelling_decisions.same_person(session, world.storage.pepper, request, right, NO_WINDOWS)


def test_a_generation_that_the_backup_does_not_hold_is_not_served_and_says_so(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(guarantee="proved")
    old = snapshot(world)
    later = world.live(name="later")
    world.delete("p1")
    retrained(world, model_id)
    assert [version.generation_id for version in world.versions(model_id)][-1] != old.generation(model_id).id
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [])
    model = old.model(model_id)
    assert (model.status, [v.status for v in old.versions(model_id)]) == ("retired", ["retired"])
    assert "another name" in (model.reason or "") and sorted(report.retired) == ["later", "m"]
    assert differs(old) == ""
    assert world.model(later).name == "later"


def test_what_a_lost_version_carried_out_is_completed_and_certified_of_the_other_model_alone(
    world: World, snapshot: Snapshot
) -> None:
    lost, kept = world.live(guarantee="proved"), world.live(name="kept")
    request = world.delete("p1")
    world.work(kept)
    old = snapshot(world)
    retrained(world, lost)
    assert world.request(request).status == "completed"
    restore(old.storage, old.limits.lease_seconds, signer(old), [])
    confirmed(old)
    tasks = {task.model_id: task for task in old.rows_of(Task)}
    assert (tasks[lost].status, tasks[lost].reason, tasks[lost].version_id) == ("completed", "model_retired", None)
    assert old.request(request).status == "completed"
    run.extend_log(old.database, signer(old), old.storage.guard.witness)
    assert issue_due(old.database, signer(old), old.storage.pepper) == 1
    with old.database.read() as session:
        envelope = session.scalar(select(Certificate.envelope).where(Certificate.request_id == request))
    statement = verified(json.loads(envelope or ""), signer(old).verifier)
    assert [part["model"] for part in statement["predicate"]["models"]] == ["kept"]


def test_a_draw_that_was_withheld_and_a_release_that_never_committed_count_as_spent(
    world: World, snapshot: Snapshot
) -> None:
    model_id = world.live(guarantee="proved")
    budget_cost = world.generation(model_id).budget_cost
    old = snapshot(world)
    world.delete("p1")
    job = world.claim(model_id)
    end_without_version(world.storage.database, world.storage.journal, job, {}, budget_cost)  # type: ignore[arg-type]
    world.storage.database.close()
    world.storage.keys.close()
    world.expire_lease(model_id)
    die_at(world, "publish-inside-commit", lambda other: other.work(model_id))
    committed = len(world.versions(model_id)) == 2
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [])
    assert old.generation(model_id).spent == 2 * budget_cost == sum(row.budget_cost for row in old.rows_of(BudgetEntry))
    assert report.spent == {str(old.generation(model_id).id): 2 * budget_cost}
    assert len(old.versions(model_id)) == 1 or committed
    if not committed:
        assert list(root_of(old.storage.store).joinpath("updates").glob("*.set-aside"))


def test_a_restore_waits_until_workers_and_scheduler_are_stopped(world: World) -> None:
    world.pulse().beat()
    with pytest.raises(NotAuthentic, match="Stop them"):
        restore(world.storage, world.limits.lease_seconds, signer(world), [])
    with world.database.write() as session:
        session.get_one(Heartbeat, world.process.owner).beat_at = 1
    restore(world.storage, world.limits.lease_seconds, signer(world), [])


def test_a_worker_starts_on_a_database_older_than_its_store_and_claims_nothing(
    world: World, snapshot: Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    model_id = world.live(guarantee="proved")
    waiting = world.delete("p2")
    old = snapshot(world)
    world.work(model_id)
    old.work(model_id)
    assert old.task(waiting).status == "queued" and "The database lacks version 2 of m" in caplog.text
    with pytest.raises(PutBack, match="lacks version 2 of m"):
        run.open_scheduler(old.settings).tick()


def test_the_api_starts_on_a_database_older_than_its_store_and_says_so(world: World, snapshot: Snapshot) -> None:
    """Nothing is taken in or handed out: the backup's current version may hold a person who was forgotten since."""
    model_id = world.live(guarantee="proved")
    old = snapshot(world)
    with old.database.write() as session:
        key = create_key(session, old.storage.pepper, label="all", scopes=list(Scope)).secret
        at = now(session)
        session.add(Heartbeat(process="w", kind="worker", software="1", started_at=at, beat_at=at))
    released(world, model_id, "p1")
    door = {"Authorization": f"Bearer {key}"}
    said = "The database lacks version 2 of m, which is in the store"
    with TestClient(create_app(old.settings), headers=door) as api:
        asked = api.post("/v1/deletion-requests", json={"subject_id": "p2"}, headers={"Idempotency-Key": "k"})
        for answer in (asked, api.get("/readyz"), api.get("/v1/models/m/versions/current/checkpoint")):
            assert answer.status_code == 503 and answer.json()["detail"].startswith(said), answer.text
        assert "expunge_database_put_back 1.0" in api.get("/metrics").text
        assert api.get("/v1/models/m").status_code == 200, "reading goes on"
    assert said in next(each.what for each in doctor(old.settings) if each.name == "witness")
    with old.database.write() as session:
        session.execute(delete(Heartbeat))
    restore(old.storage, old.limits.lease_seconds, signer(old), [])
    confirmed(old)
    with TestClient(create_app(old.settings), headers=door) as api:
        assert api.get("/v1/models/m/versions/2/checkpoint").status_code == 200
        assert api.post("/v1/deletion-requests", json={"subject_id": "p2"}, headers={"Idempotency-Key": "k"}).is_success


def test_a_log_that_was_put_back_does_not_verify_where_it_runs(
    world: World, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy has a signed head and all of its entries; the store knows what came after them."""
    model_id = world.live(guarantee="proved")
    run.open_scheduler(world.settings).tick()
    old = snapshot(world)
    with old.database.write() as session:
        key = create_key(session, old.storage.pepper, label="all", scopes=list(Scope)).secret
    home = {"home": world.settings.home / "reader"}
    monkeypatch.setattr(log_check, "Settings", lambda: old.settings.model_copy(update=home))
    with TestClient(create_app(old.settings), headers={"Authorization": f"Bearer {key}"}) as api:
        reader = Client(Account("http://testserver", key), attempts=1)
        monkeypatch.setattr(reader, "_http", api)
        monkeypatch.setattr(log_check, "connect", lambda *_, **__: nullcontext(reader))
        assert log_check.check(None, None)["verified"], "no worker is alive, and that says nothing of the log"
        released(world, model_id, "p1")
        run.open_scheduler(world.settings).tick()
        time.sleep(FRESH_SECONDS)
        with pytest.raises(CommandError, match=r"not the newest\. The database lacks version 2 of m"):
            log_check.check(None, None)


def test_the_journal_names_nobody_and_is_sealed(world: World) -> None:
    model_id = world.live(guarantee="proved")
    (request,) = released(world, model_id, "p1")
    digest = world.request(request).subject_digest or ""
    files = list(root_of(world.storage.store).joinpath("updates").iterdir())
    of_versions = [path for path in files if path.name.startswith(model_id)]
    assert sorted(path.suffix for path in of_versions) == [".draft", ".draft", ".release", ".release"]
    assert {path.name for path in files} - {path.name for path in of_versions} == {NEWEST, f".{NEWEST}.lock"}
    assert not any(digest.encode() in path.read_bytes() or request.encode() in path.read_bytes() for path in files)
    assert {entry.version["id"] for entry in world.storage.journal.entries() if entry.version} == {
        row.id for row in world.rows_of(Version)
    }


def test_an_entry_of_the_journal_opens_under_its_own_name_alone(world: World) -> None:
    model_id = world.live(guarantee="proved")
    released(world, model_id, "p1")
    first, second = sorted(root_of(world.storage.store).joinpath("updates").glob("*.draft"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(Damaged):
        list(world.storage.journal.entries())


def test_vectors_of_weights_that_a_repair_has_left_behind_are_never_used(world: World, snapshot: Snapshot) -> None:
    model_id = world.live("steps", options={"repair_epochs": 1}, threshold=10.0)
    old = snapshot(world)
    released(world, model_id, "p1")
    restore(old.storage, old.limits.lease_seconds, signer(old), [])
    confirmed(old)
    assert old.count(StoredVector) == 0
    (later,) = released(old, model_id, "p2")
    assert (old.request(later).status, old.request(later).reason) == ("blocked", "needs_retrain")


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("database_url", "method"),
    [
        ("sqlite", "newton"),
        ("postgresql", "recollection"),
        pytest.param("sqlite", "recollection", marks=pytest.mark.drill),
        pytest.param("postgresql", "newton", marks=pytest.mark.drill),
    ],
    indirect=["database_url"],
)
def test_a_release_whose_worker_died_at_its_commit_is_known_before_anything_of_it_is_final(
    world: World, snapshot: Snapshot, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others destroy its keys and delete the state before it: a restore must not take it for never committed."""
    monkeypatch.setattr(run, "ORPHAN_SECONDS", 0.0)
    model_id = world.live(method=method, guarantee="proved")
    old = snapshot(world)
    world.delete("p1")
    dying(world, "worker-after-commit", model_id)
    assert run.open_scheduler(world.settings).tick()

    restore(old.storage, old.limits.lease_seconds, signer(old))

    assert state(old, model_id) == state(world, model_id)
    confirmed(old)
    released(old, model_id, "p2")
    assert [version.number for version in old.versions(model_id)] == [1, 2, 3]


def test_a_draw_that_was_never_committed_counts_in_every_restore(world: World, snapshot: Snapshot) -> None:
    model_id = world.live(guarantee="proved")
    backups_of_then = snapshot(world), snapshot(world)
    world.delete("p1")
    dying(world, "publish-inside-commit", model_id)

    for old in backups_of_then:
        restore(old.storage, old.limits.lease_seconds, signer(old))

        assert old.generation(model_id).spent == world.generation(model_id).budget_cost


def dying(world: World, point: str, model_id: str) -> None:
    """A worker takes up what waits, and dies at the point."""
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: other.work(model_id))


@pytest.mark.both_engines
def test_a_restore_on_purpose_without_an_export_goes_on_signing_publishing_and_verifying(
    world: World, snapshot: Snapshot
) -> None:
    """The store has heads and versions of after the backup. They bind who verifies, and not the new epoch's signer."""
    model_id = world.live(guarantee="proved")
    run.extend_log(world.database, signer(world), world.storage.guard.witness)
    backups_of_then = [snapshot(world) for _ in range(2)]
    released(world, model_id, "p1")
    for _ in range(3):
        world.delete("nobody")
        run.extend_log(world.database, signer(world), world.storage.guard.witness)
    for number, old in enumerate(backups_of_then, 1):
        begins = head_of(old)
        restore(old.storage, old.limits.lease_seconds, signer(old))
        confirmed(old)
        with old.database.read() as session:
            assert epoch_of(session) == number
        epoch = Witness(old.storage.store.folder).epoch()
        assert (epoch.number, epoch.begins) == (number, begins.size)
        (request,) = released(old, model_id, f"p{number + 1}")
        keeper = run.open_scheduler(old.settings)
        for _ in range(2):  # what the first tick writes into the log is certified in the second
            keeper.tick()
        keeper.database.close()
        head, lines = export(old)
        assert verify(lines, head, signer(old).verifier).size > begins.size
        with old.database.read() as session:
            envelope = session.scalar(select(Certificate.envelope).where(Certificate.request_id == request))
        assert verified(json.loads(envelope or ""), signer(old).verifier)["subject"]
        assert [version.number for version in old.versions(model_id)][-1] == number + 2


def head_of(world: World) -> WitnessedHead:
    with world.database.read() as session:
        head = newest_head(session)
        assert head is not None
        return WitnessedHead(head.size, head.root)


def test_until_the_confirmation_whoever_looks_is_told_to_confirm(world: World, snapshot: Snapshot) -> None:
    """The heads of after the backup are still more than the database has. It is not to be restored once more."""
    model_id = world.live(guarantee="proved")
    run.extend_log(world.database, signer(world), world.storage.guard.witness)
    old = snapshot(world)
    released(world, model_id, "p1")
    run.extend_log(world.database, signer(world), world.storage.guard.witness)
    with pytest.raises(restore_guard.PutBack, match="Run `expunge restore`"):
        old.storage.guard.look()
    restore(old.storage, old.limits.lease_seconds, signer(old))
    with pytest.raises(restore_guard.PutBack, match="run `expunge restore --confirm`"):
        old.storage.guard.look()
    confirmed(old)
    old.storage.guard.look()


def test_a_confirmation_that_ends_before_its_commit_begins_the_next_epoch_when_it_is_repeated(world: World) -> None:
    world.live(guarantee="proved")
    witness = Witness(world.storage.store.folder)
    restore(world.storage, world.limits.lease_seconds, signer(world))
    with pytest.raises(KeyboardInterrupt), world.database.write() as session:
        restore_guard.confirm(session, TENANT, witness)
        raise KeyboardInterrupt
    assert witness.epoch().number == 1
    confirmed(world)
    with world.database.read() as session:
        assert epoch_of(session) == witness.epoch().number == 2


def test_the_command_confirms_only_where_the_store_takes_the_epoch(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.live(guarantee="proved")
    restore(world.storage, world.limits.lease_seconds, signer(world))
    epochs = Path(world.settings.store) / EPOCHS
    epochs.write_text("not a folder")
    for name in ("home", "database_url"):
        monkeypatch.setenv(f"EXPUNGE_{name.upper()}", str(getattr(world.settings, name)))
    with pytest.raises(CommandError, match="did not take the new epoch"):
        command(confirm_it=True)
    with world.database.read() as session:
        assert restore_guard.unconfirmed(session) is not None
    epochs.unlink()
    monkeypatch.setitem(output._wanted, "json", True)
    command(confirm_it=True)
    assert any(line.startswith("Requests:") for line in json.loads(capsys.readouterr().out)["to_do"])
    with world.database.read() as session:
        assert restore_guard.unconfirmed(session) is None and epoch_of(session) == 1
