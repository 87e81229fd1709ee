"""Claim a model's work under its lease, in one short transaction, without computing while it is open.

A preparation may take hours, an update takes seconds, and one worker does one thing at a time. So a worker looks for
waiting deletions before it begins a preparation and after every unit of one. There it gives the preparation back.
What is done of it is kept, and a later claim continues it.

An attempt is counted when it is claimed. After two claims without a result the batch is halved, so that one request
that kills workers is found among many. A request that failed alone three times is blocked. Failures of the machine
count as two attempts at most, so that no request is blocked for a full disk. A planned stop of the worker counts as
none (``give_back`` in results.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, select, update
from sqlalchemy.orm import Session

from expunge_service.audit import NAMED_IN_ONE_ENTRY, record, recorded_at
from expunge_service.infra.db import NOW, Database, batches, now
from expunge_service.infra.tables import DeletionRequest, Generation, Model, Task, Version
from expunge_service.infra.time import SECOND
from expunge_service.models import (
    budget_of,
    candidate_of,
    is_withheld,
    measured_seconds,
    model_lease,
    plan_retrain,
    policy_with_batch,
    prepared_now,
    restore_waits,
    retrain_lease,
)
from expunge_service.queue.jobs import ClaimedTask, Deletions, Preparation, Work
from expunge_service.queue.leases import (
    TakenLease,
    fence,
    is_held,
    lock,
    release,
    take,
)
from expunge_service.queue.results import refuse
from expunge_service.queue.serves import EVERYTHING, Serves
from expunge_service.queue.work_units import models_with_free_pieces
from expunge_service.requests import (
    AT_ONCE,
    NOT_FOR_AN_UPDATE,
    Cause,
    Reason,
    change_tasks,
    planned_deadline,
    settle,
    settle_begun,
    stored,
)
from unlearning.accounting.policy import Clock, Policy, Queue, next_action

HALVE_AFTER = 2
HOLD_AFTER = 3
_LOST = {"cause": Cause.WORKER_LOST}
SERVED = ("live", "exhausted")
NOTIFY_PATIENCE_SECONDS = 3
PATIENCE_SECONDS = 0.5
"""A preparation is interrupted for a deletion that has waited this long. An idle worker would have taken it before."""
LARGEST_BATCH = 10_000
"""tasks that one update takes at most; their vectors are never in memory together"""


@dataclass(frozen=True)
class Waiting:
    """A task that may be claimed. ``group`` is the token of its last claim; tasks that failed together share it."""

    id: str
    request_id: str
    attempts: int
    group: int
    traceparent: str | None = None
    not_before: int = 0


@dataclass(frozen=True)
class Choice:
    """The tasks to ``take`` together, and those to ``hold`` because they failed alone too often."""

    take: tuple[Waiting, ...]
    hold: tuple[Waiting, ...]

    def attempts(self, task: Waiting) -> int:
        """Return the task's attempts with this claim counted: two at most, unless it is claimed alone."""
        return task.attempts + 1 if len(self.take) == 1 else min(task.attempts + 1, HALVE_AFTER)


def choose(waiting: Sequence[Waiting], limit: int) -> Choice:
    """Choose the next batch of at most ``limit`` tasks from ``waiting``, oldest first."""
    lost = tuple(task for task in waiting if task.attempts >= HOLD_AFTER)
    rest = [task for task in waiting if task.attempts < HOLD_AFTER]
    suspects = [task for task in rest if task.attempts >= HALVE_AFTER]
    if not suspects:
        return Choice(tuple(rest[:limit]), lost)
    together = [task for task in suspects if task.group == suspects[0].group]
    return Choice(tuple(together[: (len(together) + 1) // 2]), lost)


def claim(
    database: Database, model_id: str, owner: str, lease_seconds: float, serves: Serves = EVERYTHING
) -> Work | None:
    """Claim a model's work under a lease: its preparation, its waiting deletions, or its candidate generation.

    Returns None where no work waits or may start yet, other workers have the lease, the worker does not take the model,
    or a restored backup waits for the operator. ``serves``: what this worker takes.
    """
    with database.write() as session:
        found = _locked(session, model_id, serves)
        if found is None:
            return None
        (model, held), at = found, recorded_at(session)
        trains = serves.trains(model)
        if model.status == "preparing":
            if not trains or is_withheld(model):
                return None
            generation = session.get_one(Generation, model.generation_id)
            lease = take(session, model_lease(model.id), owner, at, lease_seconds)
            return _building(session, model, generation, lease)
        if model.status not in SERVED:
            return None
        mine = not held and serves.takes(model)
        deletions = _deletions(session, model, owner, at, lease_seconds) if mine else None
        return deletions or (_retraining(session, model, owner, at, lease_seconds) if trains else None)


def claim_deletions(
    database: Database, model_id: str, owner: str, lease_seconds: float, serves: Serves = EVERYTHING
) -> Deletions | None:
    """Claim a model's waiting deletions alone; None as ``claim`` does."""
    with database.write() as session:
        found = _locked(session, model_id, serves)
        if found is None:
            return None
        (model, held), at = found, recorded_at(session)
        mine = model.status in SERVED and not held and serves.takes(model)
        return _deletions(session, model, owner, at, lease_seconds) if mine else None


def is_due(session: Session, model_id: str) -> bool:
    """Return whether there is work for this model now."""
    return session.scalar(_DUE, {"model": model_id}) is not None


_DUE = select(Model.id).where(Model.id == bindparam("model"), Model.due_at <= NOW)


def unnotified(at: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a model's work is due, not claimed and not just notified."""
    task = (
        select(Task.model_id)
        .where(Task.status.in_(("queued", "running")), Task.not_before <= at)
        .where(Task.model_id == Model.id, func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE))
        .exists()
    )
    retraining = is_held(retrain_lease("") + Model.id, at)
    planned = select(Generation.id).where(Generation.model_id == Model.id, Generation.status == "candidate").exists()
    scheduled = Model.status.in_(("live", "exhausted")) & (Model.retrain_at <= at)
    exhausted = (Model.status == "exhausted") & (task | Model.due_at.is_not(None))
    work = prepared_now() | ((Model.status == "live") & task) | (~retraining & exhausted)
    mine = select(Task.id).where(Task.model_id == Model.id, Task.status == "queued", Task.not_before <= at)
    # whom no claim has seen yet: the deadline may be nearer than the update that others wait for
    urgent = mine.where(Task.reason == Reason.AWAITING_BATCH).exists() & mine.where(Task.reason.is_(None)).exists()
    due = ~is_held(model_lease("") + Model.id, at) & (Model.due_at.is_(None) | (Model.due_at <= at) | urgent)
    patience = NOTIFY_PATIENCE_SECONDS * SECOND  # a clock that had jumped ahead notified in the future
    forgotten = ~Model.notified_at.between(at - patience + 1, at + patience)
    return forgotten & ((due & work) | (~retraining & (planned | scheduled)))


def mark_notified(session: Session) -> dict[str, set[str]]:
    """Mark the models with work that is due, not claimed and not just notified; return the places of their work.

    A training that is planned or scheduled may be taken elsewhere than the updates.
    """
    at = now(session)
    rung = (
        update(Model)
        .where(unnotified(at))
        .values(notified_at=at)
        .returning(Model.id, Model.place, Model.policy, (Model.status != "live") | (Model.retrain_at <= at))
        .execution_options(synchronize_session=False)
    )
    marked = session.execute(rung).all()
    planned = select(Generation.model_id).where(
        Generation.status == "candidate", Generation.model_id.in_([model_id for model_id, *_ in marked])
    )
    trained = set(session.scalars(planned)) if marked else set()
    return {
        model_id: {place, Policy.from_json(policy).place} if trains or model_id in trained else {place}
        for model_id, place, policy, trains in marked
    }


def waiting_deletions(session: Session, serves: Serves = EVERYTHING, patience_seconds: float = 0.0) -> list[str]:
    """Return the ids of the live models with a deletion that the worker can take now, the longest waiting first."""
    return list(session.scalars(select_waiting_deletions(serves, patience_seconds)))


@cache
def select_waiting_deletions(serves: Serves, patience_seconds: float) -> Select[str]:
    """Select the same; built once, because it is asked twice a second.

    Args:
        serves: what the worker takes.
        patience_seconds: only deletions that have been ready for this long.
    """
    return (
        select(Task.model_id)
        .join(Model, Model.id == Task.model_id)
        .where(Model.status == "live", serves.where(Model), ~is_held(model_lease("") + Model.id, NOW))
        .where(func.coalesce(Model.due_at, 0) <= NOW)
        .where(Task.status.in_(("queued", "running")), Task.not_before <= NOW - int(patience_seconds * SECOND))
        .where(func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE))
        .group_by(Task.model_id)
        .order_by(func.min(Task.not_before), Task.model_id)
    )


def before(database: Database, model_id: str, serves: Serves = EVERYTHING) -> tuple[Sequence[str], str | None]:
    """Return what comes before a model's work: the models with waiting deletions, and a model with free units.

    A waiting deletion of the model itself comes first. Units come before preparations only. ``serves``: what
    the worker takes.
    """
    with database.read() as session:
        deletions = waiting_deletions(session, serves)
        if model_id in deletions:
            return (), None
        if session.scalar(select(Model.status).where(Model.id == model_id)) != "preparing":
            return deletions, None
        others = (each for each in models_with_free_pieces(session, serves) if each != model_id)
        return deletions, next(others, None)


def deletions_wait(database: Database, serves: Serves = EVERYTHING) -> bool:
    """Return whether deletions that the worker takes wait so long that a preparation gives way between two units."""
    with database.read() as session:
        return bool(waiting_deletions(session, serves, PATIENCE_SECONDS))


def postpone(database: Database, job: Preparation) -> None:
    """Give an interrupted preparation back to any worker. It does not count as an attempt. Raises Stale, Busy."""
    with database.write() as session:
        model = fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        generation.attempts = max(0, generation.attempts - 1)
        record(session, job.tenant_id, "preparation.interrupted", model_id=model.id, generation=generation.id)
        release(session, job.lease.name)


def _locked(session: Session, model_id: str, serves: Serves) -> tuple[Model, bool] | None:
    """Do what ``lock`` does and clear the notification; None where this worker may not work on the model."""
    found = lock(session, model_id)
    if found is None:
        return None
    model, _ = found
    model.notified_at = 0
    return found if not restore_waits(session) and (serves.takes(model) or serves.trains(model)) else None


def _job(model: Model, generation: Generation, lease: TakenLease) -> dict[str, Any]:
    """Return the fields that every job has."""
    return {
        "lease": lease,
        "tenant_id": model.tenant_id,
        "model_name": model.name,
        "recipe": model.recipe,
        "policy": Policy.from_json(model.policy).in_force(generation.method),
        "generation_id": generation.id,
        "lost_in": generation.phase,
    }


def _building(session: Session, model: Model, generation: Generation, lease: TakenLease | None) -> Preparation | None:
    """Count the attempt; None where another has the lease, or too many were lost, and the generation is refused."""
    if lease is None:
        return None
    kind = "preparation" if generation.id == model.generation_id else "retrain"
    if generation.attempts >= HOLD_AFTER:
        last = f", the last in phase {generation.phase}" if generation.phase else ""
        what = f"{HOLD_AFTER} attempts ended without a result{last}."
        again = ", and register the model again" if kind == "preparation" else ""
        refuse(session, model, generation, what, f"Read the worker's log{again}.", reason=Reason.FAILED, facts=_LOST)
        return None
    generation.attempts += 1
    facts: dict[str, Any] = {"model_id": model.id, "generation": generation.id, "attempt": generation.attempts}
    record(session, model.tenant_id, f"{kind}.claimed", **facts)
    return Preparation(**_job(model, generation, lease), attempt=generation.attempts)


def _retraining(session: Session, model: Model, owner: str, at: int, lease_seconds: float) -> Preparation | None:
    """Claim the model's candidate, planning one where it is due; None where none is, or another worker builds it."""
    generation = plan_retrain(session, model)
    if generation is None:
        return None
    lease = take(session, retrain_lease(model.id), owner, at, lease_seconds)
    return _building(session, model, generation, lease)


def _deletions(session: Session, model: Model, owner: str, at: int, lease_seconds: float) -> Deletions | None:
    generation = session.get_one(Generation, model.generation_id)
    waiting = _waiting(session, model, at)
    if not waiting or _must_wait(session, model, generation, waiting, at):
        return None
    choice = choose(waiting, LARGEST_BATCH)
    lease = take(session, model_lease(model.id), owner, at, lease_seconds)
    if lease is None:
        return None
    _hold_lost(session, model, generation, choice.hold)
    if not choice.take or model.current_id is None:
        release(session, lease.name)
        return None
    tasks = _mark_running(session, choice, lease)
    facts: dict[str, Any] = {"model_id": model.id, "generation": generation.id, "token": str(lease.token)}
    for part in batches(sorted(task.request_id for task in tasks), NAMED_IN_ONE_ENTRY):
        record(session, model.tenant_id, "update.claimed", **facts, requests=part)
    return Deletions(**_job(model, generation, lease), current_id=model.current_id, tasks=tasks)


def _waiting(session: Session, model: Model, at: int) -> list[Waiting]:
    """Return queued tasks that are due, and running ones: the lease has run out, so their worker is lost."""
    return [Waiting(*row) for row in session.execute(_WAITING, {"model": model.id, "at": at})]


_WAITING = (
    select(Task.id, Task.request_id, Task.attempts, func.coalesce(Task.lease_token, 0), DeletionRequest.traceparent)
    .add_columns(Task.not_before)
    .join(DeletionRequest, DeletionRequest.id == Task.request_id)
    .where(Task.model_id == bindparam("model"), Task.status.in_(("queued", "running")))
    .where(Task.not_before <= bindparam("at"), func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE))
    .order_by(Task.created_at, Task.id)
)


def _must_wait(session: Session, model: Model, generation: Generation, waiting: Sequence[Waiting], at: int) -> bool:
    """Return whether the batch, a pause after a failed attempt, or a retrain delays the next update.

    A request with a nearer deadline moves the shared update forward.
    """
    policy = policy_with_batch(model, generation)
    later = model.due_at is not None and model.due_at > at
    if later and (not policy.batch or any(task.attempts for task in waiting)):
        return True
    due_at = released_at = None
    if policy.batch:
        due_at = session.scalar(
            select(func.min(case((Task.not_before == AT_ONCE, AT_ONCE), else_=planned_deadline())))
            .select_from(DeletionRequest)
            .join(Task, Task.request_id == DeletionRequest.id)
            .where(Task.model_id == model.id, Task.status.in_(("queued", "running")))
            .where(func.coalesce(Task.reason, "") != Reason.AWAITING_CONSUMERS)
        )
        released_at = session.scalar(select(Version.published_at).where(Version.id == model.current_id))
    retraining = model.status == "exhausted" and candidate_of(session, model.id) is not None
    queue = Queue(
        waiting=len(waiting),
        due_at=due_at,
        released_at=released_at,
        waits_since=min(task.not_before for task in waiting),
        retraining=retraining,
    )
    clock = Clock(at, int((measured_seconds(generation) or 0.0) * SECOND))
    action = next_action(policy, budget_of(generation), queue, clock)
    if action.kind == "wait":
        model.due_at = action.until
        _put_to_batch(session, model, at)
    return action.kind in ("wait", "nothing", "retrain")


def _put_to_batch(session: Session, model: Model, at: int) -> None:
    """Say of each task that has come since the last claim that it waits for the next update, with the others."""
    rows = session.execute(
        select(Task.id, Task.request_id).where(
            Task.model_id == model.id, Task.status == "queued", Task.not_before <= at, Task.reason.is_(None)
        )
    ).all()
    change_tasks(session, [row.id for row in rows], reason=Reason.AWAITING_BATCH)
    settle(session, (row.request_id for row in rows))


def _hold_lost(session: Session, model: Model, generation: Generation, lost: Iterable[Waiting]) -> None:
    """Block the tasks that failed alone too often; their deadlines stay as they are."""
    requests = []
    for task in lost:
        row = session.get_one(Task, task.id)
        row.status = "blocked"
        if row.reason is None:
            row.reason, row.facts = Reason.FAILED, stored(Reason.FAILED, _LOST)
        requests.append(task.request_id)
        record(
            session,
            model.tenant_id,
            "update.blocked",
            request_id=task.request_id,
            model_id=model.id,
            reason=row.reason,
            attempts=task.attempts,
            last_phase=generation.phase,
        )
    settle(session, requests)


def _mark_running(session: Session, choice: Choice, lease: TakenLease) -> tuple[ClaimedTask, ...]:
    alike: dict[int, list[str]] = {}
    for task in choice.take:
        alike.setdefault(choice.attempts(task), []).append(task.id)
    for attempts, ids in alike.items():
        change_tasks(session, ids, status="running", attempts=attempts, lease_token=lease.token)
    settle_begun(session, [task.request_id for task in choice.take])
    return tuple(
        ClaimedTask(task.id, task.request_id, task.traceparent, task.attempts, task.group) for task in choice.take
    )
