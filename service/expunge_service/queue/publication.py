"""The one transaction that makes a version: of an update, of a first generation, or of a retrained one.

It begins with the fence: a worker without its lease writes no row. The version's files were written and
synced before; keys are destroyed and files purged after.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from expunge_service import requests
from expunge_service.audit import Contradicted, charge, record, recorded_at
from expunge_service.infra.db import Database, batches, log_after_commit
from expunge_service.infra.stores import StoredFile
from expunge_service.infra.tables import Erasure, Generation, Membership, Model, PhaseSeconds, Removal, Version
from expunge_service.infra.time import HOUR_SECONDS, SECOND, time_bucket
from expunge_service.models import (
    PUBLISHED,
    Row,
    any_swept,
    count_use,
    drop_parts,
    drop_vectors,
    facts_of,
    rewrite_vectors,
    withdraw,
    write_marked,
)
from expunge_service.queue.jobs import ClaimedTask, Deletions, Job
from expunge_service.queue.journal_entry import UpdateJournal
from expunge_service.queue.leases import Stale, fence
from expunge_service.queue.results import Completed, Result, finish, note_exhaustion, queue_newcomers, release_claim
from expunge_service.queue.selection import ForgottenCount, Target, members, named_by, protected_positions
from expunge_service.requests import WebhookEvent, announce
from unlearning.accounting.certificate import Claim

ASK_AGAIN = "Ask for it again. Where it ends so once more, report it with this line."
GIVE_BACK_THE_HELD = "Put people under a legal hold back into the data, or lift the hold; then ask for it again."


class Replan(RuntimeError):
    """A legal hold or a request appeared while the version was drafted. No row was written: select again.

    ``train_again``: what a candidate was trained on is not wanted any more. A legal hold contradicts it, or a person
    left for whom the method has no vector. The candidate cannot be used. ``remedy``: what to do where that goes on.
    """

    def __init__(self, what: str, *, train_again: bool = False, remedy: str = ASK_AGAIN) -> None:
        super().__init__(what)
        self.train_again, self.remedy = train_again, remedy


log = logging.getLogger(__name__)
_REMOVE, _ERASE, _TIME = (insert(kind.__table__) for kind in (Removal, Erasure, PhaseSeconds))


@dataclass(frozen=True)
class Draft:
    """A version that is ready to be published. Its files are durable and its claim is made."""

    version_id: str
    checkpoint: StoredFile
    state: StoredFile
    method: str
    claim: Claim
    accuracy: float | None
    budget_cost: int
    target: Target
    """what the method forgot, in the draft's generation"""
    size: ForgottenCount
    """how many leave the served model with this version"""
    commitments: Mapping[str, str]
    """keyed digests of the tables that say what the version holds, by table, as of its publication"""
    marked: Mapping[str, str]
    """keyed digests of the blocks of marks that it writes, by the blocks' names"""
    seconds: Mapping[str, float] = field(default_factory=dict)
    training_work: float | None = None
    """seconds of work of one whole training, by what this update repeated of it; None: it says nothing of that"""
    vectors: Sequence[Row] = ()
    """rows, sealed again, of remaining vectors that the update changed"""
    begun: int = 0
    """a moment before the files were written, on the database's clock"""
    environment: Mapping[str, Any] | None = None
    """of the worker that trained it"""
    parts: Collection[str] | None = None
    """the keys of the parts that it is made of: the rows of all others go with it; None: it is not made of parts"""


@contextmanager
def publication(
    database: Database, journal: UpdateJournal, job: Job, draft: Draft
) -> Iterator[tuple[Session, Model, int]]:
    """Open the transaction that publishes ``draft``: lock, fence, number; at its end budget, lease and journal.

    Raises Stale, Overspent, PutBack, OSError where the store does not answer, and what the body raises; then no row
    was written.
    """
    journal.guard.look(job.model_id)
    with database.write() as session:
        model = fence(session, job.lease)
        journal.guard.still(session, job.model_id)
        require_files(session, draft)
        parent = None if model.current_id is None else session.get_one(Version, model.current_id)
        number = _free_number(session, journal, model, draft.version_id, 1 if parent is None else parent.number + 1)
        yield session, model, number
        note_exhaustion(session, model)
        release_claim(session, model)
        try:
            journal.write(
                session,
                job,
                draft.budget_cost,
                draft.version_id,
                positions=draft.target.positions,
                rewritten=bool(draft.vectors),
            )
        except Contradicted as error:
            raise Stale(str(error)) from None
    journal.guard.witness.release(job.model_id, number, draft.version_id)


def publish(
    database: Database,
    journal: UpdateJournal,
    job: Deletions,
    draft: Draft,
    results: Mapping[ClaimedTask, Result],
    *,
    names: requests.Names,
) -> None:
    """Publish an update. ``names``: what the requests of its tasks name.

    Raises Stale, Replan, Overspent, and RuntimeError where a request would end too early.
    """
    with publication(database, journal, job, draft) as (session, model, number):
        require_current(model, job.current_id)
        parent = session.get_one(Version, model.current_id)
        gone = _as_selected(session, job, draft, results, names)
        make_version(session, job, draft, parent, number, gone=gone)
        finish(session, job, results, draft.version_id, draft.method)
        queue_newcomers(session, job, model, parent.published_at - HOUR_SECONDS * SECOND)


def _as_selected(
    session: Session, job: Deletions, draft: Draft, results: Mapping[ClaimedTask, Result], names: requests.Names
) -> list[str]:
    """Read once more what the requests name; return the keyed digests of the samples that leave, sorted.

    Raises Replan where a legal hold covers one of them since, and RuntimeError where a request that ends names a sample
    that stays, or a sample leaves that no request names.
    """
    rows, target = members(session, job, names), frozenset(draft.target.positions)
    leaving = [row for row in rows if row.position in target]
    if any(row.held for row in leaving):
        raise Replan("a legal hold covers part of this update")
    named = named_by(names, rows)
    ending = {task.request_id for task, result in results.items() if isinstance(result, Completed)}
    staying = {request: positions - target for request, positions in named.items()}
    left = {request: positions for request, positions in staying.items() if positions and request in ending}
    if left:
        raise RuntimeError(still_there(left, frozenset().union(*left.values())))
    unnamed = len(target.difference(row.position for row in leaving))
    if unnamed:
        raise RuntimeError(f"not published: this version lacks {unnamed} samples that none of its requests names")
    return sorted({row.sample for row in leaving})


def still_there(named: Mapping[str, frozenset[int]], missing: frozenset[int]) -> str:
    """Return why a version must not be published: which requests name samples that it still holds."""
    counts = {request: len(positions & missing) for request, positions in sorted(named.items())}
    shown = [f"request {request} names {count} samples" for request, count in counts.items() if count]
    return f"not published: {', '.join(shown[:5])}{', ...' if len(shown) > 5 else ''} that this version still holds"


def require_current(model: Model, current_id: str | None) -> None:
    """Check that no version was published since the claim: a commit of unknown outcome may have taken effect."""
    if model.current_id != current_id:
        raise Stale(f"model {model.id} has another current version than this update was computed from")


def require_files(session: Session, draft: Draft) -> None:
    """Check that no sweep has taken the draft's files for those of a dead worker. Raises Stale."""
    if any_swept(session, (draft.checkpoint.digest, draft.state.digest), draft.begun):
        raise Stale("the draft's files were swept while its worker slept")


def require_no_hold(session: Session, job: Job, target: Target) -> None:
    """Check that no legal hold keeps anything that the draft forgot. Raises Replan."""
    if not protected_positions(session, job).isdisjoint(target.positions):
        raise Replan("a legal hold covers part of this update")


def make_version(
    session: Session, job: Job, draft: Draft, parent: Version | None, number: int, *, gone: Sequence[str]
) -> None:
    """Insert the version: charge it, retire its parent, mark what it forgets, drop and change vectors, write the entry.

    ``gone``: the keyed digests of the samples that leave the served model with this version.
    """
    model = session.get_one(Model, job.model_id)
    at = recorded_at(session)
    if draft.budget_cost:
        charge(session, job.generation_id, draft.version_id, draft.budget_cost)
    session.flush()
    version = _version(job, draft, number, parent, at)
    session.add(version)
    if parent is not None:
        parent.status, parent.retired_at = "retired", at
    model.current_id = draft.version_id
    session.flush()
    mark_forgotten(session, version, draft.target.positions)
    write_marked(session, version.generation_id, draft.marked)
    dropped = drop_vectors(session, job.generation_id, draft.target.holders)
    erase(session, version, job.generation_id, dropped)
    measured = Generation.model_id == model.id
    if not draft.target.positions:  # who leaves was left out of this generation, and of its figures
        measured &= Generation.id != job.generation_id
    withdraw(session, measured)
    rewrite_vectors(session, draft.vectors)
    if draft.parts is not None:
        drop_parts(session, job.generation_id, draft.parts)
    record(
        session,
        job.tenant_id,
        PUBLISHED,
        model_id=model.id,
        samples=gone,
        **facts_of(version, parent, draft.budget_cost),
    )
    facts = {"model": model.name, "version": number, "checkpoint_sha256": draft.checkpoint.digest}
    announce(session, job.tenant_id, WebhookEvent.VERSION_PUBLISHED, facts)
    said = {"model": model.name, "version": number, "method": version.method, "count": version.people}
    # as coarse as the metric: exact seconds would tell how many steps were taken
    log_after_commit(session, log, "version published", **said, seconds=time_bucket(sum(draft.seconds.values())))
    _time_phases(session, job, draft, at)
    session.flush()


def _free_number(session: Session, journal: UpdateJournal, model: Model, version_id: str, number: int) -> int:
    """Return ``number``, or the first after it that is free. A number that was drafted and has no row is never given
    again: its worker died before the commit, or the database lost it. Its weights may have been read, so it counts
    as charged.
    """
    while journal.guard.witness.drafted(model.id, number) not in (None, version_id):
        lost = journal.draft(model.id, number)
        row = select(Generation.spent, Generation.budget).where(Generation.id == lost.generation_id)
        found = session.execute(row.where(Generation.model_id == model.id)).first()
        if found is not None:
            most = lost.spent if found.budget is None else min(lost.spent, found.budget)
            if most > found.spent:
                charge(session, lost.generation_id, None, most - found.spent)
        number += 1
    return number


def _version(job: Job, draft: Draft, number: int, parent: Version | None, at: int) -> Version:
    return Version(
        id=draft.version_id,
        tenant_id=job.tenant_id,
        model_id=job.model_id,
        generation_id=job.generation_id,
        number=number,
        parent_id=None if parent is None else parent.id,
        status="current",
        checkpoint=draft.checkpoint.digest,
        size=draft.checkpoint.size,
        state=draft.state.digest,
        method=draft.method,
        claim=draft.claim.to_json(),
        commitments=dict(draft.commitments),
        samples=draft.size.samples,
        people=draft.size.people,
        holdout_accuracy=draft.accuracy,
        environment=None if draft.environment is None else dict(draft.environment),
        published_at=at,
    )


def mark_forgotten(session: Session, version: Version, positions: Iterable[int]) -> None:
    """Mark these positions of the version's generation as forgotten by it, and count them."""
    positions = list(positions)
    rows = [
        {"generation_id": version.generation_id, "position": position, "version_id": version.id}
        for position in positions
    ]
    for batch in batches(rows):
        session.execute(_REMOVE, batch)
    count_use(session, version, positions)


def erase(session: Session, version: Version, generation_id: int, key_ids: Iterable[str]) -> None:
    """Order the destruction of these keys of a generation. Their rows were deleted with this version."""
    rows = [
        {
            "tenant_id": version.tenant_id,
            "generation_id": generation_id,
            "version_id": version.id,
            "key_id": key_id,
            "created_at": version.published_at,
        }
        for key_id in key_ids
    ]
    for batch in batches(rows):
        session.execute(_ERASE, batch)


_SAMPLES = select(Membership.sample_digest).where(
    Membership.generation_id == bindparam("generation"),
    Membership.position.in_(bindparam("positions", expanding=True)),
)


def sample_digests(session: Session, generation_id: int, positions: Iterable[int]) -> list[str]:
    """Return the keyed digests of the samples at these positions, sorted."""
    place = {"generation": generation_id}
    found = (session.scalars(_SAMPLES, {"positions": batch, **place}) for batch in batches(positions))
    return sorted(set().union(*found))


def _time_phases(session: Session, job: Job, draft: Draft, at: int) -> None:
    rows = [
        {
            "model_id": job.model_id,
            "version_id": draft.version_id,
            "method": draft.method,
            "phase": phase,
            "seconds": time_bucket(seconds),
            "created_at": at,
        }
        for phase, seconds in draft.seconds.items()
    ]
    if rows:
        session.execute(_TIME, rows)
    if draft.training_work is not None:
        generation = session.get_one(Generation, job.generation_id)
        generation.report = (generation.report or {}) | {"work_seconds": time_bucket(draft.training_work)}
