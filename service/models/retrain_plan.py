"""The plan to retrain a model: one candidate generation, however many requests wait for it.

While it is built, the served generation still publishes updates. Workers plan and build it; the API shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.audit.log import record
from service.infra.db import now
from service.infra.tables import Generation, Model, Task, Version, WorkUnit
from service.infra.time import SECOND
from service.models.generations import open_generation
from service.requests.reasons import Reason
from unlearning.accounting.budget import Budget
from unlearning.accounting.policy import OnExhausted, Policy


@dataclass(frozen=True)
class PlannedRetrain:
    """A retrain that waits or runs; moments in microseconds since 1970."""

    reason: str
    generation: int
    waiting: int
    """requests that it will serve, as far as they have come"""
    attempt: int
    phase: str | None
    progress: float
    planned_at: int
    eta: int | None
    """None: no training of this model was ever timed"""


def candidate_of(session: Session, model_id: str) -> Generation | None:
    """Return the model's candidate generation, if one is planned or being built."""
    query = select(Generation).where(Generation.model_id == model_id, Generation.status == "candidate")
    return session.scalars(query.order_by(Generation.id.desc()).limit(1)).one_or_none()


def plan_retrain(session: Session, model: Model, note: str | None = None) -> Generation | None:
    """Return the model's candidate: the planned one, or a new one where a retrain is due; None where none is due.

    The caller has locked the model's row. ``note`` is sealed and says why the policy's fallback was taken.
    """
    planned = candidate_of(session, model.id)
    why = None if planned is not None else why_due(session, model)
    if why is None:
        return planned
    policy = Policy.from_json(model.policy)
    served = session.get_one(Generation, model.generation_id)
    chosen = (served.manifest or {}).get("chosen")
    generation = Generation(
        tenant_id=model.tenant_id,
        model_id=model.id,
        status="candidate",
        method=policy.method if chosen is None else chosen["method"],
        guarantee="none",
        noise_std=policy.noise_std,
        max_distance=policy.max_distance,
        epsilon=policy.epsilon,
        delta=policy.delta,
        report={"reason": why, "eta_seconds": measured_seconds(served)},
        manifest={"note": note} | ({} if chosen is None else {"chosen": chosen}),
        created_at=now(session),
    )
    open_generation(session, generation)
    facts = generation.report or {}
    record(session, model.tenant_id, "retrain.planned", model_id=model.id, generation=generation.id, **facts)
    return generation


def why_due(session: Session, model: Model) -> str | None:
    """Return why a retrain is to be planned now: ``fallback`` or ``budget_exhausted``; None where none is.

    After a refused retrain only a waiting request makes the next one due: without one it would be refused again.
    """
    queued = select(func.count()).select_from(Task).where(*_open_tasks(model))
    if session.scalar(queued.where(Task.reason == Reason.AWAITING_RETRAIN)):
        return "fallback"
    if model.status != "exhausted" or Policy.from_json(model.policy).on_exhausted is not OnExhausted.RETRAIN:
        return None
    published_at = session.scalar(select(Version.published_at).where(Version.id == model.current_id))
    refused = session.scalar(
        select(Generation.id).where(
            Generation.model_id == model.id, Generation.status == "refused", Generation.created_at >= published_at
        )
    )
    return Reason.BUDGET_EXHAUSTED if refused is None or session.scalar(queued) else None


def plan_of(session: Session, model: Model) -> PlannedRetrain | None:
    """Return the model's plan; None where no retrain is planned."""
    candidate = candidate_of(session, model.id)
    if candidate is None:
        return None
    report = candidate.report or {}
    seconds = report.get("eta_seconds")
    left = None if seconds is None else int(float(seconds) * (1.0 - candidate.progress) * SECOND)
    return PlannedRetrain(
        reason=str(report.get("reason")),
        generation=candidate.id,
        waiting=session.scalar(select(func.count(Task.id)).where(*waiting_for_retrain(model))) or 0,
        attempt=candidate.attempts,
        phase=candidate.phase,
        progress=candidate.progress,
        planned_at=candidate.created_at,
        eta=None if left is None else now(session) + left,
    )


def work_units_of(session: Session, generation_id: int) -> tuple[int, int]:
    """Return how many work units of a generation are done, and how many there are. 0 of 0: it is built in one piece."""
    counts = select(func.count(WorkUnit.done_at), func.count()).where(WorkUnit.generation_id == generation_id)
    done, count = session.execute(counts).one()
    return done, count


def waiting_for_retrain(model: Model) -> tuple[ColumnElement[bool], ...]:
    """Return the tasks that wait for the retrain: all of an exhausted model's, else those that no update can serve."""
    waits = _open_tasks(model)
    return waits if model.status == "exhausted" else (*waits, Task.reason == Reason.AWAITING_RETRAIN)


def _open_tasks(model: Model) -> tuple[ColumnElement[bool], ...]:
    waits = func.coalesce(Task.reason, "") != Reason.AWAITING_CONSUMERS
    return Task.model_id == model.id, Task.status.in_(("queued", "running")), waits


def budget_of(generation: Generation) -> Budget:
    """Return the generation's budget: spent, limit and the cost of an update."""
    return Budget(spent=generation.spent, limit=generation.budget, budget_cost=generation.budget_cost)


def measured_seconds(generation: Generation) -> float | None:
    """Return how long the generation's own training and preparation took; None where that was not timed."""
    seconds = (generation.report or {}).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None
