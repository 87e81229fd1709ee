"""What must hold after any fault, read from the database and the stores alone: the rules of reliability.md.

Written here a second time, from the tables, not with the service's own queries: a bug that the service shares with its
checks would show in neither.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import Database
from expunge_service.infra.stores import Damaged, Store
from expunge_service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    Certificate,
    DeletionRequest,
    Erasure,
    Generation,
    Membership,
    Model,
    Removal,
    Restoration,
    StoredVector,
    SuppressionEntry,
    Task,
    Version,
)
from expunge_service.models.publication_entry import claim_digest
from expunge_service.requests.states import derive
from expunge_workers.storage.key_store import KeyStore
from tests.faults.result import HARM

ENDED = ("completed", "cancelled", "rejected", "blocked")


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold. ``harm`` is a count of result.py."""

    harm: str
    words: str

    def __post_init__(self) -> None:
        if self.harm not in HARM:
            raise ValueError(f"{self.harm!r} is no harm that the table counts")


class Wrong(AssertionError):
    """A rule does not hold."""

    def __init__(self, harms: list[Broken]) -> None:
        super().__init__("; ".join(f"{each.harm}: {each.words}" for each in harms))
        self.harms = harms


def harms_of(error: BaseException) -> list[Broken]:
    """Return what a history broke. An error of the service is a harm too: nothing here may make it raise one."""
    if isinstance(error, BaseExceptionGroup):  # ids are drawn again: Hypothesis may not see the same harm twice
        return [each for inner in error.exceptions for each in harms_of(inner)]
    if isinstance(error, Wrong):
        return error.harms
    return [Broken("lost", f"the service raised {type(error).__name__}: {error}")]


def broken(database: Database) -> list[Broken]:
    """Check the rules that hold at every moment, also while work is under way."""
    with database.read() as session:
        return [found for rule in (*LASTING, updates_paid, log_complete) for found in rule(session)]


def broken_after_restore(database: Database) -> list[Broken]:
    """Check the rules that hold even after a restore: the log's tail is lost with it, and drafts are paid for."""
    with database.read() as session:
        return [found for rule in LASTING for found in rule(session)]


def unfinished(database: Database) -> list[Broken]:
    """Return the requests that are still open after there was time enough for all; a blocked one has ended visibly."""
    with database.read() as session:
        rows = session.execute(
            select(DeletionRequest.id, DeletionRequest.status).where(DeletionRequest.status.not_in(ENDED))
        )
        return [Broken("lost", f"request {row.id} is still {row.status}") for row in rows]


def uncertified(database: Database) -> list[Broken]:
    """Return the certificates that nobody has issued, after everything has ended and the scheduler has run."""
    kept = Certificate.request_id == DeletionRequest.id, Certificate.completed_at == DeletionRequest.completed_at
    changed = select(Task.id).where(Task.request_id == DeletionRequest.id, Task.version_id.is_not(None)).exists()
    due = select(DeletionRequest.id).where(DeletionRequest.status == "completed", changed)
    with database.read() as session:
        waiting = session.execute(
            select(Certificate.request_id, Certificate.refused).where(Certificate.issued_at.is_(None))
        )
        found = [Broken("lost", f"the certificate of request {each} was not issued: {why}") for each, why in waiting]
        none = session.scalars(due.where(~select(Certificate.request_id).where(*kept).exists())).all()
    return found + [Broken("lost", f"request {each} changed a model and has no certificate") for each in none]


def unreadable(database: Database, store: Store, private: Store) -> list[Broken]:
    """Return the current versions whose files are missing or have other bytes."""
    with database.read() as session:
        heads = session.execute(select(Version.checkpoint, Version.state).where(Version.status == "current")).all()
    return [
        Broken("lost", f"a head's {name} is damaged")
        for head in heads
        for name, kept, digest in (("checkpoint", store, head.checkpoint), ("state", private, head.state))
        if not _whole(kept, digest)
    ]


def left_behind(database: Database, keys: KeyStore) -> list[Broken]:
    """Return the keys and vectors of people who were forgotten."""
    with database.read() as session:
        erased = session.execute(select(Erasure.key_id, Erasure.destroyed_at)).all()
        vectors = session.scalar(
            select(func.count())
            .select_from(StoredVector)
            .join(
                Membership,
                (Membership.generation_id == StoredVector.generation_id) & (Membership.holder == StoredVector.holder),
            )
            .join(
                Removal,
                (Removal.generation_id == Membership.generation_id) & (Removal.position == Membership.position),
            )
        )
    alive = keys.fetch([row.key_id for row in erased])
    found = [Broken("left_behind", f"key {key_id} was not destroyed") for key_id in alive]
    found += [Broken("left_behind", "an erasure is not done") for row in erased if row.destroyed_at is None]
    return found + [Broken("left_behind", f"{vectors} rows of vectors of forgotten people")] * bool(vectors)


def requests_kept(session: Session) -> Iterator[Broken]:
    """Check that every request in the log is there, with its suppression entry and its tasks' status."""
    accepted = session.scalars(select(AuditEntry.request_id).where(AuditEntry.kind == "request.accepted")).all()
    status = {row.id: row.status for row in session.execute(select(DeletionRequest.id, DeletionRequest.status))}
    asked = set(session.scalars(select(DeletionRequest.id).where(DeletionRequest.near.is_not(None))))
    marked = set(session.scalars(select(SuppressionEntry.request_id)))
    tasks: dict[str, list[str]] = {}
    for row in session.execute(select(Task.request_id, Task.status)):
        tasks.setdefault(row.request_id, []).append(row.status)
    told = {each for report in session.scalars(select(Restoration.report)) for each in report["requests_lost"]}
    for request_id in accepted:
        if request_id in told and request_id not in status:
            continue  # lost with a backup, and named to the operator
        if request_id not in status or request_id not in marked:
            yield Broken("lost", f"request {request_id} was accepted and is gone")
        elif request_id in asked and status[request_id] != "blocked":
            yield Broken("lost", f"request {request_id} waits for a decision about its id and is {status[request_id]}")
        elif request_id not in asked and tasks.get(str(request_id)) and status[request_id] != derive(tasks[request_id]):
            yield Broken("lost", f"request {request_id} is {status[request_id]}, its tasks {tasks[str(request_id)]}")
    for request_id, count in Counter(accepted).items():
        if count > 1:
            yield Broken("doubled", f"request {request_id} was accepted {count} times")


def tasks_name_versions(session: Session) -> Iterator[Broken]:
    """Check that each version that a task names as its own exists."""
    known = select(Version.id).where(Version.id == Task.version_id).exists()
    for task_id in session.scalars(select(Task.id).where(Task.version_id.is_not(None), ~known)):
        yield Broken("lost", f"task {task_id} was carried out in a version that nobody knows")


def undecided_change_nothing(session: Session) -> Iterator[Broken]:
    """Check that a request that nobody verified, or that was rejected, has no task, and no suppression entry, like a
    cancelled one.
    """
    undecided = (DeletionRequest.status == "rejected") | (DeletionRequest.reason == "unverified")
    worked = select(Task.request_id).join(DeletionRequest, DeletionRequest.id == Task.request_id).where(undecided)
    for request_id in session.scalars(worked.distinct()):
        yield Broken("doubled", f"request {request_id} was never verified and is carried out")
    stones = select(SuppressionEntry.request_id).join(
        DeletionRequest, DeletionRequest.id == SuppressionEntry.request_id
    )
    idle = undecided | (DeletionRequest.status == "cancelled")
    for request_id in session.scalars(stones.where(idle, SuppressionEntry.lifted_at.is_(None)).distinct()):
        yield Broken("lost", f"request {request_id} was cancelled, or never verified, and keeps somebody out")


def near_misses_wait(session: Session) -> Iterator[Broken]:
    """Check that a request waits for a decision about its id exactly where it is blocked for that, and that one that
    never got further has no task.
    """
    waits = (DeletionRequest.status == "blocked") & (DeletionRequest.reason == "near_miss")
    for request_id in session.scalars(select(DeletionRequest.id).where(waits != DeletionRequest.near.is_not(None))):
        yield Broken("lost", f"request {request_id} waits for a decision that nobody can take, or does not wait")
    begun = select(Task.request_id).join(SuppressionEntry, SuppressionEntry.request_id == Task.request_id)
    for request_id in session.scalars(begun.where(SuppressionEntry.lifted_reason == "near_miss").distinct()):
        yield Broken("doubled", f"request {request_id} may name another person and is carried out")


def versions_chained(session: Session) -> Iterator[Broken]:
    """Check that versions are dense, that each has the one before as parent, and that the newest alone is current."""
    rows: dict[str, list[Version]] = {}
    for version in session.scalars(select(Version).order_by(Version.model_id, Version.number)):
        rows.setdefault(version.model_id, []).append(version)
    for model in session.scalars(select(Model)):
        versions = rows.get(model.id, [])
        numbers = [
            version.number for version in versions
        ]  # one whose worker died before its commit is never given again
        if numbers != sorted(set(numbers)) or numbers[:1] == [0]:
            yield Broken("doubled", f"model {model.name} has versions {numbers}")
        ids = [version.id for version in versions]
        if [version.parent_id for version in versions[1:]] != ids[:-1] or any(each.parent_id for each in versions[:1]):
            yield Broken("doubled", f"the versions of model {model.name} are not a chain")
        heads = [version.id for version in versions if version.status == "current"]
        served = ids[-1:] if model.status != "retired" else []
        if heads != served or model.current_id != (ids[-1] if ids else None):
            yield Broken("doubled", f"model {model.name} has {len(heads)} heads, or an old one")


def budget_kept(session: Session) -> Iterator[Broken]:
    """Check that spent is the ledger's sum, within the limit, and that every update in the generation was paid for
    once.
    """
    entries: dict[int, list[BudgetEntry]] = {}
    for entry in session.scalars(select(BudgetEntry)):
        entries.setdefault(entry.generation_id, []).append(entry)
    for generation in session.scalars(select(Generation)):
        paid = entries.get(generation.id, [])
        if generation.spent != sum(entry.budget_cost for entry in paid):
            yield Broken("overspent", f"generation {generation.id} spent {generation.spent}, its ledger says otherwise")
        if generation.spent < 0 or (generation.budget is not None and generation.spent > generation.budget):
            yield Broken("overspent", f"generation {generation.id} spent {generation.spent} of {generation.budget}")
        twice = Counter(entry.version_id for entry in paid if entry.version_id is not None)
        if any(count > 1 for count in twice.values()):
            yield Broken("doubled", f"an update of generation {generation.id} was charged twice")


def updates_paid(session: Session) -> Iterator[Broken]:
    """Check that every update cost its generation's constant charge, once."""
    wrong = (
        select(BudgetEntry.generation_id, Generation.budget_cost)
        .join(Generation, Generation.id == BudgetEntry.generation_id)
        .where(BudgetEntry.budget_cost != Generation.budget_cost)
    )
    for row in session.execute(wrong):
        yield Broken("overspent", f"an update of generation {row.generation_id} did not cost {row.budget_cost}")
    unpaid = (
        select(Version.id)
        .join(Generation, Generation.id == Version.generation_id)
        .where(
            Generation.budget_cost > 0,
            select(Removal.version_id).where(Removal.version_id == Version.id).exists(),
        )
        .where(~select(BudgetEntry.id).where(BudgetEntry.version_id == Version.id).exists())
    )
    for version_id in session.scalars(unpaid):
        yield Broken("overspent", f"version {version_id} was released without a charge")


def effects_once(session: Session) -> Iterator[Broken]:
    """Check that no sample left a generation twice, by the log's account."""
    left: Counter[tuple[int, str]] = Counter()
    for facts in _published(session):
        left.update((facts["generation"], sample) for sample in facts["samples"])
    for (generation_id, _), count in left.items():
        if count > 1:
            yield Broken("doubled", f"a sample left generation {generation_id} {count} times")


def heads_lack_the_deleted(session: Session) -> Iterator[Broken]:
    """Check that nobody whose deletion was marked applied is part of what is served."""
    gone = {
        (row.generation_id, row.position) for row in session.execute(select(Removal.generation_id, Removal.position))
    }
    members: dict[tuple[int, str], set[int]] = {}
    for member in session.scalars(select(Membership)):
        for name in (member.subject_digest, member.sample_digest):
            members.setdefault((member.generation_id, name), set()).add(member.position)
    done = select(
        Task.request_id,
        Model.generation_id,
        Model.name,
        SuppressionEntry.subject_digest,
        SuppressionEntry.sample_digest,
    )
    done = done.join(Model, Model.id == Task.model_id).join(
        SuppressionEntry, SuppressionEntry.request_id == Task.request_id
    )
    for row in session.execute(
        done.where(
            Task.status == "completed", SuppressionEntry.lifted_at.is_(None), Model.status.in_(("live", "exhausted"))
        )
    ):
        here = members.get((row.generation_id, row.subject_digest or row.sample_digest), set())
        if any((row.generation_id, position) not in gone for position in here):
            words = f"model {row.name} serves somebody whose request {row.request_id} is completed"
            yield Broken("served_with_deletion_missing", words)


def log_complete(session: Session) -> Iterator[Broken]:
    """Replay the log and check that it gives the tables: every version, and whom it lacks, exactly once."""
    told = [
        (facts["version"], facts["number"], facts["checkpoint"], facts["claim_sha256"]) for facts in _published(session)
    ]
    versions = session.scalars(select(Version)).all()
    kept = [(each.id, each.number, each.checkpoint, claim_digest(each.claim)) for each in versions]
    if sorted(told) != sorted(kept):
        yield Broken("lost", f"the log tells of {len(told)} versions, the table of {len(kept)}, or they differ")
    requests = session.scalar(select(func.count()).select_from(DeletionRequest)) or 0
    accepted = session.scalar(select(func.count()).where(AuditEntry.kind == "request.accepted")) or 0
    if requests != accepted:
        yield Broken("lost", f"{requests} requests are in the table, {accepted} in the log")
    digests = _digests(session)
    generation_of = {row.id: row.generation_id for row in session.execute(select(Version.id, Version.generation_id))}
    living = set(session.scalars(select(Generation.id).where(Generation.status == "live")))
    for facts in _published(session):
        # a switch tells who leaves the old generation; what an ended generation knew about people is gone
        released = generation_of.get(facts["parent"]) == facts["generation"] and facts["generation"] in living
        if released and set(facts["samples"]) != digests.get(facts["version"], set()):
            yield Broken("lost", f"the log and the table differ on who left with version {facts['number']}")


def _digests(session: Session) -> dict[str, set[str]]:
    rows = session.execute(
        select(Removal.version_id, Membership.sample_digest).join(
            Membership,
            (Membership.generation_id == Removal.generation_id) & (Membership.position == Removal.position),
        )
    )
    found: dict[str, set[str]] = {}
    for version_id, sample in rows:
        found.setdefault(version_id, set()).add(sample)
    return found


def _published(session: Session) -> list[dict[str, Any]]:
    bodies = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "version.published"))
    return [json.loads(body) for body in bodies]


def _whole(store: Store, digest: str) -> bool:
    try:
        store.read(digest)
    except Damaged:
        return False
    return True


def counted(found: list[Broken]) -> dict[str, int]:
    """Count how often each harm was found."""
    return dict(Counter(each.harm for each in found))


LASTING = (
    requests_kept,
    tasks_name_versions,
    undecided_change_nothing,
    near_misses_wait,
    versions_chained,
    budget_kept,
    effects_once,
    heads_lack_the_deleted,
)
