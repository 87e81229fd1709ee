"""The result of an update for each task, and the small transactions that end a claim without a new version.

Each transaction begins with the fence: a worker without its lease writes no row.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from expunge_service import models
from expunge_service.audit import NAMED_IN_ONE_ENTRY, canonical, charge, record, recorded_at
from expunge_service.infra.db import Database, batches, log_after_commit, now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import DeletionRequest, Generation, Model, SuppressionEntry, Task
from expunge_service.infra.time import SECOND
from expunge_service.models import (
    FALLBACK,
    PLANNED,
    budget_of,
    is_dry_run,
    is_due_otherwise,
    model_lease,
    plan_retrain,
    retrain_lease,
    schedule_retrain,
    waiting_for_retrain,
)
from expunge_service.queue.jobs import ClaimedTask, Deletions, Job, Work
from expunge_service.queue.journal_entry import UpdateJournal
from expunge_service.queue.leases import fence, release
from expunge_service.queue.work_units import free_pieces
from expunge_service.requests import (
    NOT_FOR_AN_UPDATE,
    Reason,
    announce_exhaustion,
    ask_again,
    change_tasks,
    end_unpublished,
    positions,
    settle,
    stored,
)
from unlearning.accounting.policy import CompleteWhen, Policy

OPEN = ("queued", "running", "blocked")
_NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Completed:
    """The task is completed: ``samples`` left the model; where there were none, ``reason`` and ``facts`` say why."""

    samples: int
    reason: Reason | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Blocked:
    """The task cannot be carried out. ``facts`` are for the audit log and for the reason's sentence."""

    reason: Reason
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Postponed:
    """The task waits again: for the retrain (``awaiting_retrain``), or for the next update (None).

    It waits until the retrain is published, or until the model's ``due_at``. ``note`` is sealed and says why the
    policy's fallback was taken.
    """

    reason: Reason | None = None
    note: str | None = None


Result: TypeAlias = Completed | Blocked | Postponed


def end_without_version(
    database: Database,
    journal: UpdateJournal,
    job: Deletions,
    results: Mapping[ClaimedTask, Result],
    budget_cost: int = 0,
) -> None:
    """End a claim that changes no weights: there is no sample to forget, or everything is blocked or postponed.

    ``budget_cost`` is the cost of an update that was computed, measured and withheld. It is still charged, so
    that the draw cannot be repeated until it passes. Raises Stale, Overspent.
    """
    with database.write() as session:
        model = fence(session, job.lease)
        charge_withheld(session, journal, job, budget_cost)
        finish(session, job, results, model.current_id, job.policy.method)
        _record(session, job, results)
        note_exhaustion(session, model)
        release_claim(session, model)


def without_numbers(text: str) -> str:
    """Return a refusal as it may be stored for long: its numbers are computed from people's data."""
    return _NUMBERS.sub("#", text)


def points_of(policy: Policy) -> dict[str, Any]:
    """Return how many points of accuracy an update may cost, for the reason of one that costs more."""
    return {"points": f"{100 * (policy.max_accuracy_drop or 0):g}"}


def charge_withheld(session: Session, journal: UpdateJournal, job: Job, budget_cost: int) -> None:
    """Charge an update that was computed and will never be published. Raises Overspent."""
    if budget_cost:
        charge(session, job.generation_id, None, budget_cost)
        journal.write_withheld(session, job, budget_cost)


def requeue(database: Database, job: Job, why: Mapping[str, Any], pause_seconds: float, most: int) -> None:
    """Let the tasks of a failed attempt wait again for a pause. No result is discarded. Raises Stale, Busy.

    ``why`` has the error's type, file and line, as far as they are known.
    The attempts made so far, this one included, count as ``most`` at most.
    """
    with database.write() as session:
        model = fence(session, job.lease)
        later = now(session) + int(pause_seconds * SECOND)
        facts: dict[str, Any] = {"model_id": model.id, "token": str(job.lease.token), **why}
        record(session, job.tenant_id, "attempt.failed", **facts)
        generation = session.get_one(Generation, job.generation_id)
        generation.attempts = min(generation.attempts, most)
        if job.lease.name == retrain_lease(model.id):
            release(session, job.lease.name, until=later)
            return
        tasks = session.scalars(
            select(Task).where(Task.model_id == model.id, Task.status == "running", Task.lease_token == job.lease.token)
        ).all()
        for task in tasks:
            task.status, task.attempts = "queued", min(task.attempts, most)
            task.reason, task.facts = Reason.FAILED, stored(Reason.FAILED, why)
        settle(session, [task.request_id for task in tasks])
        release_claim(session, model, later)


def give_back(database: Database, job: Work, owner: str, phase: str) -> None:
    """Give a claim back to any worker at once, with the pieces of ``owner``: its process is to stop.

    The attempt is not counted: everything is as if the claim had not been made. Raises Stale, Busy.
    """
    with database.write() as session:
        model = fence(session, job.lease)
        facts: dict[str, Any] = {"model_id": model.id, "generation": job.generation_id, "token": str(job.lease.token)}
        record(session, job.tenant_id, "attempt.given_back", **facts, phase=phase)
        free_pieces(session, owner)
        if isinstance(job, Deletions):
            _put_back(session, job)
            release_claim(session, model)
            return
        generation = session.get_one(Generation, job.generation_id)
        generation.attempts = max(0, generation.attempts - 1)
        release(session, job.lease.name)


def moved_on(session: Session, job: Work) -> None:
    """Count no attempt before this one: it left a point that the next one goes on from."""
    if isinstance(job, Deletions):
        change_tasks(session, list(_running(session, job)), attempts=1)
    else:
        session.get_one(Generation, job.generation_id).attempts = 1


def _running(session: Session, job: Deletions) -> dict[str, int]:
    """Return the attempts of those tasks of a claim that are carried out by it, by id."""
    theirs = select(Task.id, Task.attempts).where(
        Task.model_id == job.model_id, Task.status == "running", Task.lease_token == job.lease.token
    )
    return {task: attempts for task, attempts in session.execute(theirs)}


def _put_back(session: Session, job: Deletions) -> None:
    """Let the tasks of a claim wait as they did before it."""
    running = _running(session, job)
    alike: dict[tuple[int, int], list[str]] = {}
    for task in job.tasks:
        if task.id in running:
            attempts = task.attempts if running[task.id] > 1 else 0  # 1: its first, or it moved on since the claim
            alike.setdefault((attempts, task.group), []).append(task.id)
    for (attempts, group), ids in alike.items():
        change_tasks(session, ids, status="queued", attempts=attempts, lease_token=group or None)
    settle(session, (task.request_id for task in job.tasks))


def finish(
    session: Session, job: Job, results: Mapping[ClaimedTask, Result], version_id: str | None, method: str
) -> None:
    """Write each task's result and its request's status; plan the retrain that any of them waits for.

    A request that the model knows no sample of is asked about first, see ``requests.near_misses``.

    Completed tasks point to ``version_id`` and to the ``method`` that made it.
    """
    at = recorded_at(session)
    behind = models.behind(session, version_id) if job.policy.complete_when is CompleteWhen.SERVED else False
    alike: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for task, result in results.items():
        columns = _columns(result, behind)
        if isinstance(result, Completed):
            done_at = at if columns["status"] == "completed" else None
            columns |= {"version_id": version_id, "method": method, "completed_at": done_at}
        alike.setdefault(canonical(columns), (columns, []))[1].append(task.id)
    if alike:
        session.flush()
        for values, ids in alike.values():
            change_tasks(session, ids, **values)
        ask_again(session, _unmatched(results))
        settle(session, (task.request_id for task in results))
    waiting = [
        each for each in results.values() if isinstance(each, Postponed) and each.reason == Reason.AWAITING_RETRAIN
    ]
    if waiting:
        plan_retrain(session, session.get_one(Model, job.model_id), waiting[0].note)


def _unmatched(results: Mapping[ClaimedTask, Result]) -> list[str]:
    """Return the requests of which the model knows no sample."""
    return [
        task.request_id
        for task, result in results.items()
        if isinstance(result, Completed) and result.reason == Reason.NO_MATCH
    ]


def _columns(result: Result, behind: bool) -> dict[str, Any]:
    """Return the columns of a task with this result.

    ``behind``: a consumer still serves a version of before, so people who were in it are not gone yet.
    """
    columns: dict[str, Any] = {"status": "blocked", "samples": None, "reason": result.reason, "facts": None}
    if not isinstance(result, Postponed):
        columns["facts"] = stored(result.reason, result.facts)
    if isinstance(result, Postponed):
        columns["status"] = "queued"
    elif isinstance(result, Completed):
        columns |= {"status": "completed", "samples": result.samples}
        if behind and (result.samples or result.reason == Reason.ALREADY_DELETED):
            columns |= {"status": "running", "reason": Reason.AWAITING_CONSUMERS}
    return {**columns, "version_id": None, "method": None, "completed_at": None}


def _record(session: Session, job: Job, results: Mapping[ClaimedTask, Result]) -> None:
    blocked = {task.request_id: each for task, each in results.items() if isinstance(each, Blocked)}
    reasons = sorted({each.reason for each in results.values() if each.reason})
    kind = "update.blocked" if blocked else "update.postponed" if Reason.AWAITING_RETRAIN in reasons else "update.empty"
    facts: dict[str, Any] = {}
    for each in blocked.values():
        facts |= each.facts
    named = sorted(blocked or {task.request_id for task in results})
    for part in batches(named, NAMED_IN_ONE_ENTRY):
        record(session, job.tenant_id, kind, model_id=job.model_id, requests=part, reasons=reasons, **facts)


def refuse(
    session: Session,
    model: Model,
    generation: Generation,
    what: str,
    hint: str,
    *,
    reason: Reason = Reason.RETRAIN_REFUSED,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a generation that is being built, with what happened and a hint.

    Of a model's first generation no version was ever published, so its requests end. Where a candidate is refused the
    served generation stays, and the tasks that waited for the retrain are blocked with ``reason``. Its sentence names
    the ``facts`` (None: ``what``, without its numbers). A dry run ends.
    """
    if is_dry_run(generation):
        end_dry_run(session, model, generation, {"refused": {"what": what, "hint": hint}})
        return
    generation.status, generation.phase, generation.ended_at = "refused", None, now(session)
    generation.report = (generation.report or {}) | {"refused": {"what": what, "hint": hint}}
    model.due_at = None
    named: dict[str, Any] = {"model_id": model.id, "generation": generation.id}
    plain = without_numbers(what)
    if model.generation_id == generation.id:
        model.status, model.reason = "refused", f"{what} {hint}"
        release(session, model_lease(model.id))
        record(session, model.tenant_id, "preparation.refused", **named, what=plain)
        log_after_commit(session, log, "training refused", model=model.name, why=plain)
        end_unpublished(session, model)
        return
    model.reason = f"The retrain was refused. {what} {hint}"
    schedule_retrain(session, model)
    release(session, retrain_lease(model.id))
    record(session, model.tenant_id, "retrain.refused", **named, reason=reason)
    log_after_commit(session, log, "retrain refused", model=model.name, reason=str(reason), why=plain)
    tasks = session.scalars(select(Task).where(*waiting_for_retrain(model))).all()
    why = stored(reason, {"detail": plain} if facts is None else facts)
    for task in tasks:
        task.status, task.reason, task.facts = "blocked", reason, why
    settle(session, (task.request_id for task in tasks))


def withhold(session: Session, model: Model, generation: Generation, report: Mapping[str, Any]) -> None:
    """Leave a first generation in preparation until a person decides. ``report``: what its row may hold of it."""
    model.reason, model.due_at = models.WITHHELD, None
    generation.report = (generation.report or {}) | dict(report)
    generation.phase, generation.attempts = None, 0
    release(session, model_lease(model.id))
    record(session, model.tenant_id, "preparation.withheld", model_id=model.id, generation=generation.id)


def end_dry_run(session: Session, model: Model, generation: Generation, found: Mapping[str, Any]) -> None:
    """End a dry run of a retrain with what it found. The model does not change otherwise."""
    generation.status, generation.phase, generation.ended_at = "ended", None, now(session)
    generation.report = (generation.report or {}) | dict(found)
    release(session, retrain_lease(model.id))
    facts: dict[str, Any] = {"model_id": model.id, "generation": generation.id}
    record(session, model.tenant_id, "retrain.dry_run_ended", **facts, refused="refused" in found)


_HAS_TASK = select(Task.id).where(Task.request_id == SuppressionEntry.request_id, Task.model_id == bindparam("model"))
_NEWCOMERS = (
    select(SuppressionEntry.request_id)
    .join(DeletionRequest, DeletionRequest.id == SuppressionEntry.request_id)
    .where(SuppressionEntry.tenant_id == bindparam("tenant"), SuppressionEntry.created_at >= bindparam("since"))
    .where(~_HAS_TASK.exists())
    .distinct()
)


def queue_newcomers(session: Session, job: Job, model: Model, since: int = 0) -> None:
    """Add a task for every request without one, if its suppression entries name a sample still in the model.

    Only entries written from ``since`` on are read (microseconds since 1970): an update's parent saw the older ones.
    """
    recent = session.scalars(_NEWCOMERS, {"model": model.id, "tenant": job.tenant_id, "since": since}).all()
    if recent:
        queue_tasks(
            session,
            model,
            positions(session, job.tenant_id, job.model_name, job.generation_id, recent),
        )


def queue_tasks(session: Session, model: Model, request_ids: Collection[str]) -> None:
    """Add a task for each of these requests, which have none in the model; their requests are open again."""
    at = recorded_at(session)
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
    """Write one audit entry when the next update no longer fits the budget, and plan the retrain that renews it.

    There is one plan and one entry for each model, however many requests wait.
    """
    session.flush()
    generation = session.get_one(Generation, model.generation_id, populate_existing=True)
    if model.status != "live" or not budget_of(generation).exhausted:
        return
    model.status = "exhausted"
    session.flush()
    record(session, model.tenant_id, "budget.exhausted", model_id=model.id, generation=generation.id)
    announce_exhaustion(session, generation.id)
    plan_retrain(session, model)


_RESTS = (
    update(Generation.__table__)
    .where(Generation.__table__.c.id == bindparam("generation"), Generation.__table__.c.phase.is_not(None))
    .values(phase=None)
)


def release_claim(session: Session, model: Model, due_at: int | None = None) -> None:
    """Release the model's lease; the next work is due at ``due_at``, or when the next waiting task or retrain is."""
    session.flush()
    session.execute(_RESTS, {"generation": model.generation_id})
    model.due_at = _next_due(session, model) if due_at is None else due_at
    release(session, model_lease(model.id))
    session.flush()


_NEXT = select(
    PLANNED.exists(),
    FALLBACK.exists(),
    select(func.min(Task.not_before))
    .where(Task.model_id == bindparam("model"), Task.status.in_(("queued", "running")))
    .where(func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE))
    .scalar_subquery(),
)


def _next_due(session: Session, model: Model) -> int | None:
    planned, waits, next_at = session.execute(_NEXT, {"model": model.id}).one()
    if planned or waits or is_due_otherwise(session, model):
        return recorded_at(session)
    return None if next_at is None else int(next_at)
