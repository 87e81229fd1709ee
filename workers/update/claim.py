"""Claiming a model's work under its lease, in one short transaction. Nothing is computed while it is open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.audit.log import record
from service.infra.db import Database, now
from service.infra.tables import DeletionRequest, Generation, Model, Task, Version
from service.infra.time import SECOND
from service.models.restore_guard import unconfirmed
from service.models.retrain_plan import budget_of, candidate_of, measured_seconds
from service.requests.states import AWAITING_CONSUMERS, NOT_FOR_AN_UPDATE
from service.requests.status import change_tasks, settle
from unlearning.accounting.policy import Clock, Policy, Queue, next_action
from workers.runtime.collector import collector_at_rest
from workers.runtime.jobs import Claimed, Deletions, Preparation, Work
from workers.runtime.lease import Lease, give_back, lock, take
from workers.update.batches import HOLD_AFTER, Choice, Waiting, choose
from workers.update.blocked import NUMBERS
from workers.update.retrain_plan import claim_retrain

SERVED = ("live", "exhausted")
LARGEST_BATCH = 10_000
"""tasks that one update takes; their vectors are never held together"""


@collector_at_rest()
def claim(
    database: Database, model_id: str, owner: str, lease_seconds: float, tenants: Collection[str] | None = None
) -> Work | None:
    """Take a lease and its work: preparation, the waiting deletions, or the building of a candidate generation.

    ``tenants``: whom this worker serves; None: everyone.

    None: nothing waits, it is not time yet, other workers are at it, the model is of a tenant that this worker does not
    serve, or a restored backup waits for the operator.
    """
    with database.write() as session:
        at = now(session)
        model = lock(session, model_id)
        if model is None:
            return None
        model.notified_at = 0
        if unconfirmed(session) is not None or (tenants is not None and model.tenant_id not in tenants):
            return None
        free = model.lease_expires_at <= at
        if model.status == "preparing" and free:
            return _preparation(session, model, take(model, owner, at, lease_seconds))
        if model.status not in SERVED:
            return None
        deletions = _deletions(session, model, owner, at, lease_seconds) if free else None
        return deletions or claim_retrain(session, model, owner, at, lease_seconds)


def _preparation(session: Session, model: Model, lease: Lease) -> Preparation | None:
    generation = session.get_one(Generation, model.generation_id)
    if generation.attempts >= HOLD_AFTER:
        what = f"worker_lost: {HOLD_AFTER} attempts ended without a result, the last in phase {generation.phase}."
        refuse(session, model, generation, what, "Read the worker's log, and register the model again.")
        return None
    generation.attempts += 1
    record(session, model.tenant_id, "preparation.claimed", model_id=model.id, attempt=generation.attempts)
    return Preparation(
        lease=lease,
        tenant_id=model.tenant_id,
        model_name=model.name,
        recipe=model.recipe,
        policy=Policy.from_json(model.policy).in_force(generation.method),
        generation_id=generation.id,
        attempt=generation.attempts,
    )


def refuse(session: Session, model: Model, generation: Generation, what: str, hint: str) -> None:
    """The model will not be served: say why, and end its requests, for nothing was ever published."""
    model.status, model.reason, model.due_at = "refused", f"{what} {hint}", None
    give_back(model)
    at = now(session)
    generation.status, generation.phase, generation.ended_at = "refused", None, at
    generation.report = (generation.report or {}) | {"refused": {"what": what, "hint": hint}}
    record(
        session,
        model.tenant_id,
        "preparation.refused",
        model_id=model.id,
        generation=generation.id,
        what=NUMBERS.sub("#", what),
    )
    open_tasks = session.scalars(
        select(Task).where(Task.model_id == model.id, Task.status.in_(("queued", "running", "blocked")))
    ).all()
    for task in open_tasks:
        task.status, task.samples, task.reason, task.completed_at = "completed", 0, "model_refused", at
    settle(session, [task.request_id for task in open_tasks])


def _deletions(session: Session, model: Model, owner: str, at: int, lease_seconds: float) -> Deletions | None:
    generation = session.get_one(Generation, model.generation_id)
    waiting = _waiting(session, model, at)
    if not waiting or _must_wait(session, model, generation, len(waiting), at):
        return None
    choice = choose(waiting, LARGEST_BATCH)
    lease = take(model, owner, at, lease_seconds)
    _hold_lost(session, model, generation, choice.hold)
    if not choice.take or model.current_id is None:
        give_back(model)
        return None
    _mark_running(session, choice, lease)
    record(
        session,
        model.tenant_id,
        "release.claimed",
        model_id=model.id,
        generation=generation.id,
        token=lease.token,
        requests=sorted(task.request_id for task in choice.take),
    )
    return Deletions(
        lease=lease,
        tenant_id=model.tenant_id,
        model_name=model.name,
        recipe=model.recipe,
        policy=Policy.from_json(model.policy).in_force(generation.method),
        generation_id=generation.id,
        current_id=model.current_id,
        tasks=_claimed(session, choice.take),
    )


def _claimed(session: Session, taken: Sequence[Waiting]) -> tuple[Claimed, ...]:
    traced = select(DeletionRequest.id, DeletionRequest.traceparent).where(
        DeletionRequest.traceparent.is_not(None),
        DeletionRequest.id.in_([task.request_id for task in taken]),
    )
    traces: dict[str, str | None] = {row.id: row.traceparent for row in session.execute(traced)}
    return tuple(Claimed(task.id, task.request_id, traces.get(task.request_id)) for task in taken)


def _waiting(session: Session, model: Model, at: int) -> list[Waiting]:
    """Queued tasks whose time has come, and running ones: their worker is lost, for the lease has run out."""
    rows = session.execute(
        select(Task.id, Task.request_id, Task.attempts, func.coalesce(Task.lease_token, 0))
        .where(Task.model_id == model.id, Task.status.in_(("queued", "running")), Task.not_before <= at)
        .where(func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE))
        .order_by(Task.created_at, Task.id)
    )
    return [Waiting(*row) for row in rows]


def _must_wait(session: Session, model: Model, generation: Generation, count: int, at: int) -> bool:
    """Whether the cadence, a pause after a failed attempt, or a retrain keeps the next update back."""
    if model.due_at is not None and model.due_at > at:
        return True
    policy = Policy.from_json(model.policy)
    queue = _queue(session, model, policy, count)
    action = next_action(policy, budget_of(generation), queue, _clock(generation, at))
    if action.kind == "wait":
        model.due_at = action.until
    return action.kind in ("wait", "nothing", "retrain")


def _queue(session: Session, model: Model, policy: Policy, count: int) -> Queue:
    """What the planner is told; moments are read only where a cadence needs them."""
    retraining = model.status == "exhausted" and candidate_of(session, model.id) is not None
    if not policy.cadence_seconds:
        return Queue(waiting=count, retraining=retraining)
    due_at = session.scalar(
        select(func.min(DeletionRequest.due_at))
        .join(Task, Task.request_id == DeletionRequest.id)
        .where(Task.model_id == model.id, Task.status.in_(("queued", "running")))
        .where(func.coalesce(Task.reason, "") != AWAITING_CONSUMERS)
    )
    released_at = session.scalar(select(Version.published_at).where(Version.id == model.current_id))
    return Queue(waiting=count, due_at=due_at, released_at=released_at, retraining=retraining)


def _clock(generation: Generation, at: int) -> Clock:
    """Now, and how long a retrain takes by the generation's own training."""
    return Clock(at, int((measured_seconds(generation) or 0.0) * SECOND))


def _hold_lost(session: Session, model: Model, generation: Generation, lost: Iterable[Waiting]) -> None:
    """Hold, visibly, what failed alone too often; its clock runs on."""
    requests = []
    for task in lost:
        row = session.get_one(Task, task.id)
        row.status, row.reason = "blocked", row.reason or "worker_lost"
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


def _mark_running(session: Session, choice: Choice, lease: Lease) -> None:
    alike: dict[int, list[str]] = {}
    for task in choice.take:
        alike.setdefault(choice.attempts(task), []).append(task.id)
    for attempts, ids in alike.items():
        change_tasks(session, ids, status="running", attempts=attempts, lease_token=lease.token)
    settle(session, [task.request_id for task in choice.take])
