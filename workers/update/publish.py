"""The one transaction that makes a version: an update, version 1, or the switch to a retrained generation.

Each begins with the fence: a worker whose lease was taken over writes nothing. Files were written and synced
before; keys are destroyed and files purged after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from service.audit import log as ledger
from service.infra.db import Database, now
from service.infra.fault_injection import crash_point
from service.infra.files import Stored
from service.infra.tables import Erasure, Forgotten, Generation, Membership, Model, PhaseSeconds, Task, Version
from service.infra.time import HOUR_SECONDS, SECOND, bucket
from service.models.figures import withdraw
from service.models.publications import PUBLISHED, facts_of
from service.requests import suppression as suppressions
from service.requests.reasons import Reason
from service.requests.webhooks import News, announce
from unlearning.accounting.certificate import Claim
from workers.guarantee.certify import Size
from workers.runtime.jobs import Claimed, Deletions, Job, Preparation
from workers.runtime.lease import Stale, fence
from workers.storage.key_store import BATCH, batches
from workers.storage.private_state import Row, drop_vectors, rewrite_vectors
from workers.storage.storage import Storage
from workers.update.select import Asked, Target, asked, protected_positions, why_empty
from workers.update.task_results import (
    Outcome,
    Published,
    finish,
    next_due,
    note_exhaustion,
    queue_newcomers,
    queue_tasks,
    wrap_up,
)


class HoldAppeared(RuntimeError):
    """A legal hold covers somebody in this release: plan again without them. Nothing was written."""


class SuppressionAppeared(RuntimeError):
    """Somebody asked to be forgotten while a generation's first version was drafted. Nothing was written."""


class Lacking(RuntimeError):
    """An update was to end requests whose samples it does not lack. Nothing was written."""


class Unusable(RuntimeError):
    """A draft that must not be published. Nothing was written."""


@dataclass(frozen=True)
class Draft:
    """A version that is ready to be published: its files are durable, its claim is made."""

    version_id: str
    checkpoint: Stored
    state: Stored
    method: str
    claim: Claim
    accuracy: float
    budget_cost: int
    target: Target
    """what the method forgot, in the draft's own generation"""
    size: Size
    """how many leave the served model with this version"""
    seconds: Mapping[str, float]
    vectors: Sequence[Row] = ()
    """rows, sealed anew, of those who stay and whose vectors the update changed"""


@dataclass(frozen=True)
class Departure:
    """Who leaves with a generation's first version: what the method still forgets, and how many go in all."""

    target: Target
    size: Size


@dataclass(frozen=True)
class Registered:
    """What preparation adds to the generation when version 1 is published."""

    report: Mapping[str, Any]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """request -> how many samples of the recipe it kept out of the training altogether"""


def publish(storage: Storage, job: Deletions, draft: Draft, outcomes: Mapping[Claimed, Outcome]) -> None:
    """Publish a release. Raises Stale, HoldAppeared, Overspent, Lacking; then nothing was written."""
    crash_point("worker-before-publish")
    with storage.database.write(crash="publish-inside-commit") as session:
        model = fence(session, job.lease)
        _require_head(model, job.current_id)
        require_no_hold(session, job, draft.target)
        parent = session.get_one(Version, model.current_id)
        make_version(session, job, draft, parent, sample_digests(session, job.generation_id, draft.target.positions))
        _require_gone(session, job, outcomes)
        finish(session, job, Published(draft.version_id, draft.method), outcomes)
        queue_newcomers(session, job, model, parent.published_at - HOUR_SECONDS * SECOND)
        note_exhaustion(session, model)
        wrap_up(session, model, next_due(session, model))
        changed = bool(draft.vectors)
        entry = storage.journal.write(session, job, draft.budget_cost, draft.version_id, rewritten=changed)
    crash_point("worker-after-commit")
    storage.journal.confirm(entry)


def note_commit(database: Database, job: Deletions, draft: Draft, seconds: float) -> None:
    """How long the transaction took, its commit included; so it can only be written afterwards."""
    with database.write() as session:
        model = session.get_one(Model, job.lease.model_id)
        _time_phases(session, model, replace(draft, seconds={"commit": seconds}), now(session))


def publish_first(storage: Storage, job: Preparation, draft: Draft, registered: Registered) -> None:
    """Publish version 1: the model goes live, without anybody who asked to be forgotten before this moment.

    Raises Stale, HoldAppeared, TombstoneAppeared, Overspent; then nothing was written.
    """
    crash_point("worker-before-publish")
    with storage.database.write(crash="publish-inside-commit") as session:
        model = fence(session, job.lease)
        _require_head(model, None)
        require_no_hold(session, job, draft.target)
        found = asked(session, job)
        missing = found.going.difference(draft.target.positions)
        if missing:
            raise SuppressionAppeared(still_there(found.named, missing))
        generation = session.get_one(Generation, job.generation_id)
        generation.status, generation.progress, generation.phase = "live", 1.0, None
        generation.report = dict(registered.report)
        model.status, model.generation_id, model.reason = "live", generation.id, None
        make_version(session, job, draft, None, sample_digests(session, job.generation_id, draft.target.positions))
        outcomes = _first_outcomes(session, job, found, registered)
        finish(session, job, Published(draft.version_id, draft.method), outcomes)
        queue_tasks(session, model, _kept_for_now(session, model, found, draft.target))
        note_exhaustion(session, model)
        wrap_up(session, model, next_due(session, model))
        entry = storage.journal.write(session, job, draft.budget_cost, draft.version_id)
    crash_point("worker-after-commit")
    storage.journal.confirm(entry)


def _kept_for_now(session: Session, model: Model, found: Asked, target: Target) -> list[str]:
    """The requests that name somebody whom a hold keeps in version 1, and that have no task in the model yet."""
    gone = frozenset(target.positions)
    named = {request for request, positions in found.named.items() if positions - gone}
    known: set[str] = set()
    for batch in batches(sorted(named), BATCH):
        known.update(
            session.scalars(select(Task.request_id).where(Task.model_id == model.id, Task.request_id.in_(batch)))
        )
    return sorted(named - known)


def still_there(named: Mapping[str, frozenset[int]], missing: frozenset[int]) -> str:
    """Why a version must not be published: which requests name something that it does not lack."""
    counts = {request: len(positions & missing) for request, positions in sorted(named.items())}
    told = [f"request {request} names {count} samples" for request, count in counts.items() if count]
    return f"not published: {', '.join(told[:5])}{', ...' if len(told) > 5 else ''} that this version still holds"


def _require_gone(session: Session, job: Deletions, outcomes: Mapping[Claimed, Outcome]) -> None:
    """Whatever ends with a version must be gone from it. Raises Lacking, which names the requests."""
    ending = [task.request_id for task, outcome in outcomes.items() if outcome.status == "completed"]
    left = suppressions.positions(session, job.tenant_id, job.model_name, job.generation_id, ending)
    if left:
        named = {request: frozenset(positions) for request, positions in left.items()}
        raise Lacking(still_there(named, frozenset().union(*named.values())))


def _require_head(model: Model, current_id: str | None) -> None:
    """A commit whose outcome was never learned may have taken effect: then this publication is made already."""
    if model.current_id != current_id:
        raise Stale(f"model {model.id} has another head than this release stands on")


def require_no_hold(session: Session, job: Job, target: Target) -> None:
    if not protected_positions(session, job).isdisjoint(target.positions):
        raise HoldAppeared("a legal hold covers part of this release")


def make_version(session: Session, job: Job, draft: Draft, parent: Version | None, gone: Sequence[str]) -> None:
    """Charge, insert, retire the parent, mark what is forgotten, drop and change vectors, say so in the audit log.

    ``gone``: the keyed digests of the samples that leave the served model with this version.
    """
    model = session.get_one(Model, job.lease.model_id)
    at = ledger.recorded_at(session)
    if draft.budget_cost:
        ledger.charge(session, job.generation_id, draft.version_id, draft.budget_cost)
    session.flush()
    crash_point("publish-after-charge")
    number = 1 + (session.scalar(select(func.max(Version.number)).where(Version.model_id == model.id)) or 0)
    version = _version(job, draft, number, parent, at)
    session.add(version)
    if parent is not None:
        parent.status, parent.retired_at = "retired", at
    model.current_id = draft.version_id
    session.flush()
    crash_point("publish-after-version")
    _mark_forgotten(session, job.generation_id, draft)
    _drop_vectors(session, job, draft, at)
    _withdraw_figures(session, job, draft)
    rewrite_vectors(session, draft.vectors)
    ledger.record(
        session,
        job.tenant_id,
        PUBLISHED,
        model_id=model.id,
        samples=gone,
        **facts_of(version, parent, draft.budget_cost),
    )
    facts = {"model": model.name, "version": number, "checkpoint_sha256": draft.checkpoint.digest}
    announce(session, job.tenant_id, News.VERSION_PUBLISHED, facts)
    _time_phases(session, model, draft, at)
    session.flush()
    crash_point("publish-after-audit")


def _version(job: Job, draft: Draft, number: int, parent: Version | None, at: int) -> Version:
    return Version(
        id=draft.version_id,
        tenant_id=job.tenant_id,
        model_id=job.lease.model_id,
        generation_id=job.generation_id,
        number=number,
        parent_id=None if parent is None else parent.id,
        status="current",
        checkpoint=draft.checkpoint.digest,
        size=draft.checkpoint.size,
        state=draft.state.digest,
        method=draft.method,
        claim=draft.claim.to_json(),
        samples=draft.size.samples,
        people=draft.size.people,
        holdout_accuracy=draft.accuracy,
        published_at=at,
    )


def _mark_forgotten(session: Session, generation_id: int, draft: Draft) -> None:
    rows = [
        {"generation_id": generation_id, "position": position, "version_id": draft.version_id}
        for position in draft.target.positions
    ]
    for batch in batches(rows, BATCH):
        session.execute(insert(Forgotten), batch)


def _withdraw_figures(session: Session, job: Job, draft: Draft) -> None:
    """Show no figure any more that was measured on somebody who leaves with this version."""
    measured = Generation.model_id == job.lease.model_id
    if not draft.target.positions:  # whoever leaves was left out of this generation, and of its figures
        measured &= Generation.id != job.generation_id
    withdraw(session, measured)


def _drop_vectors(session: Session, job: Job, draft: Draft, at: int) -> None:
    erasures = [
        {
            "tenant_id": job.tenant_id,
            "generation_id": job.generation_id,
            "version_id": draft.version_id,
            "key_id": key_id,
            "created_at": at,
        }
        for key_id in drop_vectors(session, job.generation_id, draft.target.holders)
    ]
    for batch in batches(erasures, BATCH):
        session.execute(insert(Erasure), batch)


def sample_digests(session: Session, generation_id: int, positions: Iterable[int]) -> list[str]:
    """The keyed digests of the samples at these positions, sorted."""
    found: set[str] = set()
    for batch in batches(positions, BATCH):
        query = select(Membership.sample_digest)
        found.update(
            session.scalars(query.where(Membership.generation_id == generation_id, Membership.position.in_(batch)))
        )
    return sorted(found)


def _time_phases(session: Session, model: Model, draft: Draft, at: int) -> None:
    rows = [
        {
            "model_id": model.id,
            "version_id": draft.version_id,
            "method": draft.method,
            "phase": phase,
            "seconds": bucket(seconds),
            "created_at": at,
        }
        for phase, seconds in draft.seconds.items()
    ]
    if rows:
        session.execute(insert(PhaseSeconds), rows)


def _first_outcomes(session: Session, job: Preparation, found: Asked, registered: Registered) -> dict[Claimed, Outcome]:
    """Every waiting task of the model ends with version 1: nobody it names is in it, or it is blocked."""
    rows = session.execute(
        select(Task.id, Task.request_id).where(
            Task.model_id == job.lease.model_id, Task.status.in_(("queued", "running"))
        )
    )
    outcomes: dict[Claimed, Outcome] = {}
    for task_id, request_id in rows:
        positions = found.named.get(request_id, frozenset())
        left_out = registered.left_out.get(request_id, 0)
        task = Claimed(task_id, request_id)
        if positions & found.protected:
            outcomes[task] = Outcome("blocked", None, Reason.LEGAL_HOLD)
        elif request_id in found.partial:
            outcomes[task] = Outcome("blocked", None, Reason.PARTIAL_SUBJECT)
        elif positions:
            outcomes[task] = Outcome("completed", len(positions) + left_out)
        else:
            outcomes[task] = Outcome(
                "completed", left_out, Reason.LEFT_OUT if left_out else why_empty(session, job, task)
            )
    return outcomes
