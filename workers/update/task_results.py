"""What becomes of the tasks of a claim, and the small transactions that end one without making a version.

Each begins with the fence: a worker whose lease was taken over writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.audit import log as ledger
from service.infra.db import Database, now
from service.infra.pseudonyms import new_id
from service.infra.tables import DeletionRequest, Generation, Model, SuppressionEntry, Task
from service.infra.time import SECOND
from service.models import consumers
from service.requests import suppression as suppressions
from service.requests.states import AWAITING_CONSUMERS, AWAITING_RETRAIN, NOT_FOR_AN_UPDATE
from service.requests.status import change_tasks, settle
from service.requests.webhooks import announce_exhaustion
from unlearning.accounting.policy import CompleteWhen
from workers.runtime.jobs import Claimed, Deletions, Job
from workers.runtime.lease import fence, give_back, give_back_beside
from workers.storage.key_store import batches
from workers.storage.storage import Storage
from workers.update.retrain_plan import exhausted, plan_retrain, retrain_due

SETTLED_AT_ONCE = 5_000


@dataclass(frozen=True)
class Outcome:
    """What became of a task: completed with so many samples, held, or queued again; and why if there is more to say.

    ``note`` is sealed, for operators: why the policy's fallback was taken.
    """

    status: str
    samples: int | None = None
    reason: str | None = None
    note: str | None = None


def settle_without_version(
    database: Database, job: Deletions, outcomes: Mapping[Claimed, Outcome], **facts: Any
) -> None:
    """End a claim that changes no weights: nothing to forget, or everything held. Costs nothing. Raises Stale."""
    with database.write() as session:
        model = fence(session, job.lease)
        finish(session, job, Published(model.current_id, job.policy.method), outcomes)
        record_outcomes(session, job, outcomes, facts)
        wrap_up(session, model, next_due(session, model))


def withhold(
    storage: Storage, job: Deletions, budget_cost: int, outcomes: Mapping[Claimed, Outcome], reason: str
) -> None:
    """Hold a release whose draw was looked at: it is charged all the same, and never redrawn until it passes.

    Raises Stale, Overspent.
    """
    with storage.database.write() as session:
        model = fence(session, job.lease)
        if budget_cost:
            ledger.charge(session, job.generation_id, None, budget_cost)
            storage.journal.confirm(storage.journal.write(session, job, budget_cost, None))
        finish(session, job, Published(model.current_id, job.policy.method), outcomes)
        record_outcomes(session, job, outcomes, {"withheld": reason, "budget_cost": budget_cost})
        note_exhaustion(session, model)
        wrap_up(session, model, next_due(session, model))


def give_up(database: Database, job: Job, why: str, pause_seconds: float, most: int) -> None:
    """An attempt failed: its tasks wait again, for a while. Nothing is discarded. Raises Stale, Busy.

    ``most``: what the attempts made so far count at most, this one included.
    """
    with database.write() as session:
        model = fence(session, job.lease)
        later = now(session) + int(pause_seconds * SECOND)
        ledger.record(session, job.tenant_id, "attempt.failed", model_id=model.id, token=job.lease.token, why=why)
        generation = session.get_one(Generation, job.generation_id)
        generation.attempts = min(generation.attempts, most)
        if job.lease.name is not None:
            give_back_beside(session, model.id, until=later)
            return
        tasks = session.scalars(
            select(Task).where(Task.model_id == model.id, Task.status == "running", Task.lease_token == job.lease.token)
        ).all()
        for task in tasks:
            task.status, task.reason, task.attempts = "queued", why, min(task.attempts, most)
        settle(session, [task.request_id for task in tasks])
        wrap_up(session, model, later)


@dataclass(frozen=True)
class Published:
    """What completed tasks point to: a version, and the method that made it."""

    version_id: str | None
    method: str


def finish(session: Session, job: Job, made: Published, outcomes: Mapping[Claimed, Outcome]) -> None:
    """Write each task's outcome, and what follows for its request; plan the retrain that any of them waits for."""
    at = ledger.recorded_at(session)
    serving = consumers.behind(session, made.version_id) if job.policy.complete_when is CompleteWhen.SERVED else False
    alike: dict[_Change, list[str]] = {}
    for task, outcome in outcomes.items():
        alike.setdefault(_change(outcome, made, at, serving), []).append(task.id)
    if alike:
        session.flush()
        for change, ids in alike.items():
            change_tasks(session, ids, **change._asdict())
        for batch in batches((task.request_id for task in outcomes), SETTLED_AT_ONCE):
            settle(session, batch)
    if any(outcome.reason == AWAITING_RETRAIN for outcome in outcomes.values()):
        notes = (outcome.note for outcome in outcomes.values() if outcome.note)
        plan_retrain(session, session.get_one(Model, job.lease.model_id), next(notes, None))


class _Change(NamedTuple):
    """What becomes of a task's row."""

    status: str
    samples: int | None
    reason: str | None
    method: str | None
    version_id: str | None
    completed_at: int | None


def _change(outcome: Outcome, made: Published, at: int, serving: bool) -> _Change:
    """``serving``: somebody still serves a version from before, so whoever was in it is not gone yet."""
    done = outcome.status == "completed"
    waits = done and serving and bool(outcome.samples or outcome.reason == "already_forgotten")
    return _Change(
        status="running" if waits else outcome.status,
        samples=outcome.samples,
        reason=AWAITING_CONSUMERS if waits else outcome.reason,
        method=made.method if done else None,
        version_id=made.version_id if done else None,
        completed_at=at if done and not waits else None,
    )


def record_outcomes(session: Session, job: Job, outcomes: Mapping[Claimed, Outcome], facts: Mapping[str, Any]) -> None:
    held = sorted(task.request_id for task, outcome in outcomes.items() if outcome.status == "blocked")
    reasons = sorted({outcome.reason for outcome in outcomes.values() if outcome.reason})
    postponed = any(outcome.reason == AWAITING_RETRAIN for outcome in outcomes.values())
    kind = "update.blocked" if held else "release.postponed" if postponed else "release.empty"
    ledger.record(
        session,
        job.tenant_id,
        kind,
        model_id=job.lease.model_id,
        requests=held or sorted(task.request_id for task in outcomes),
        reasons=reasons,
        **facts,
    )


def queue_newcomers(session: Session, job: Deletions, model: Model, since: int) -> None:
    """A task for every matching suppression entry that has none: nobody slips through.

    Only suppression entries written since shortly before the parent need looking at: its own publication saw the
    others.
    """
    recent = session.scalars(
        select(SuppressionEntry.request_id)
        .join(DeletionRequest, DeletionRequest.id == SuppressionEntry.request_id)
        .where(
            SuppressionEntry.tenant_id == job.tenant_id,
            SuppressionEntry.created_at >= since,
            ~select(Task.id).where(Task.request_id == SuppressionEntry.request_id, Task.model_id == model.id).exists(),
        )
        .distinct()
    ).all()
    found = suppressions.positions(session, job.tenant_id, job.model_name, job.generation_id, recent) if recent else {}
    queue_tasks(session, model, found)


def queue_tasks(session: Session, model: Model, request_ids: Collection[str]) -> None:
    """A task for each of these requests, which have none in the model: they stay open until it has carried them out."""
    at = ledger.recorded_at(session)
    session.add_all(
        Task(
            id=new_id(),
            tenant_id=model.tenant_id,
            request_id=request_id,
            model_id=model.id,
            status="queued",
            not_before=at,
            created_at=at,
        )
        for request_id in request_ids
    )
    if request_ids:
        settle(session, request_ids)


def note_exhaustion(session: Session, model: Model) -> None:
    """Say once, and visibly, that the next update does not fit any more; plan the retrain that mends it.

    One plan and one entry a model, however many requests wait: they need not be there yet.
    """
    session.flush()
    if model.status != "live" or not exhausted(session, model):
        return
    model.status = "exhausted"
    session.flush()
    ledger.record(session, model.tenant_id, "budget.exhausted", model_id=model.id, generation=model.generation_id)
    announce_exhaustion(session, model.generation_id or 0)
    plan_retrain(session, model)


def next_due(session: Session, model: Model) -> int | None:
    """When the model's next work may be claimed: a waiting task, or a retrain; None where there is none."""
    session.flush()
    if retrain_due(session, model):
        return now(session)
    return session.scalar(
        select(func.min(Task.not_before)).where(
            Task.model_id == model.id,
            Task.status.in_(("queued", "running")),
            func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE),
        )
    )


def wrap_up(session: Session, model: Model, due_at: int | None) -> None:
    session.execute(update(Generation).where(Generation.id == model.generation_id).values(phase=None))
    model.due_at = due_at
    give_back(model)
    session.flush()
