"""A candidate lineage: planned once however many requests wait, built beside the old one, and given up in words."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db import now
from service.ledger import record
from service.lineages import open_lineage
from service.progress import settle
from service.records import Lineage, Model, Task, Version
from unlearning.budget import would_overspend
from unlearning.certificate import Basis
from unlearning.policy import OnExhausted, Policy
from workers.batches import HOLD_AFTER
from workers.jobs import AWAITING_RETRAIN, Retraining
from workers.lease import give_back_beside, take_beside

OPEN = ("queued", "running")
REFUSED = "retrain_refused"


def candidate(session: Session, model: Model) -> Lineage | None:
    """The model's candidate, if one is planned or being built."""
    query = select(Lineage).where(Lineage.model_id == model.id, Lineage.status == "candidate")
    return session.scalars(query.order_by(Lineage.id.desc()).limit(1)).one_or_none()


def retrain_due(session: Session, model: Model) -> bool:
    """Whether a candidate waits to be built, or is to be planned."""
    return candidate(session, model) is not None or _why(session, model, Policy.from_json(model.policy)) is not None


def claim_retrain(session: Session, model: Model, owner: str, at: int, lease_seconds: float) -> Retraining | None:
    """Take the lease of the model's candidate, planning one where it is due. None: none is, or others are at it."""
    lineage = candidate(session, model) or _plan(session, model, at)
    if lineage is None:
        return None
    lease = take_beside(session, model.id, owner, at, lease_seconds)
    if lease is None:
        return None
    if lineage.attempts >= HOLD_AFTER:
        what = f"worker_lost: {HOLD_AFTER} attempts ended without a result, the last in phase {lineage.phase}."
        refuse_candidate(session, model, lineage, what, "Read the worker's log.")
        return None
    lineage.attempts += 1
    record(session, model.tenant_id, "retrain.claimed", model_id=model.id, lineage=lineage.id, attempt=lineage.attempts)
    return Retraining(
        lease=lease,
        tenant_id=model.tenant_id,
        model_name=model.name,
        recipe=model.recipe,
        policy=Policy.from_json(model.policy),
        lineage_id=lineage.id,
        attempt=lineage.attempts,
    )


def refuse_candidate(session: Session, model: Model, lineage: Lineage, what: str, hint: str) -> None:
    """The candidate will not become head. The old lineage stays; whoever waits for the retrain is held, visibly."""
    at = now(session)
    lineage.status, lineage.ended_at = "refused", at
    lineage.report = (lineage.report or {}) | {"refused": {"what": what, "hint": hint}}
    model.reason, model.due_at = f"The retrain was refused. {what} {hint}", None
    give_back_beside(session, model.id)
    record(session, model.tenant_id, "retrain.refused", model_id=model.id, lineage=lineage.id, what=what)
    waiting = select(Task).where(Task.model_id == model.id, Task.status == "queued")
    if not exhausted(session, model):
        waiting = waiting.where(Task.reason == AWAITING_RETRAIN)
    tasks = session.scalars(waiting).all()
    for task in tasks:
        task.status, task.reason = "held", REFUSED
    settle(session, [task.request_id for task in tasks])


def _plan(session: Session, model: Model, at: int) -> Lineage | None:
    """One plan for the whole queue, with what it is for and how long the last training took."""
    policy = Policy.from_json(model.policy)
    why = _why(session, model, policy)
    if why is None:
        return None
    lineage = Lineage(
        tenant_id=model.tenant_id,
        model_id=model.id,
        status="candidate",
        method=policy.method,
        basis=Basis.NONE.value,
        sigma=policy.sigma,
        delta_cap=policy.delta_cap,
        epsilon=policy.epsilon,
        delta=policy.delta,
        report={"reason": why, "eta_seconds": _measured_seconds(session, model)},
        created_at=at,
    )
    open_lineage(session, lineage)
    record(session, model.tenant_id, "retrain.planned", model_id=model.id, lineage=lineage.id, **(lineage.report or {}))
    return lineage


def _why(session: Session, model: Model, policy: Policy) -> str | None:
    """Why a retrain is due now; None where it is not.

    After one was refused, nothing but a request that waits brings the next: it would only be refused again.
    """
    queued = select(func.count()).select_from(Task).where(Task.model_id == model.id, Task.status.in_(OPEN))
    if session.scalar(queued.where(Task.reason == AWAITING_RETRAIN)):
        return "fallback"
    if policy.on_exhausted is not OnExhausted.RETRAIN or model.status != "exhausted":
        return None
    published_at = session.scalar(select(Version.published_at).where(Version.id == model.head_id))
    refused = session.scalar(
        select(Lineage.id).where(
            Lineage.model_id == model.id, Lineage.status == "refused", Lineage.created_at >= published_at
        )
    )
    return "budget_exhausted" if refused is None or session.scalar(queued) else None


def exhausted(session: Session, model: Model) -> bool:
    """Whether the next release of the head's lineage does not fit into its budget."""
    lineage = session.get_one(Lineage, model.lineage_id, populate_existing=True)
    return would_overspend(lineage.spent, lineage.budget, lineage.charge)


def _measured_seconds(session: Session, model: Model) -> float | None:
    report: dict[str, Any] = session.get_one(Lineage, model.lineage_id).report or {}
    seconds = report.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None
