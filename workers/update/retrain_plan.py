"""A candidate lineage: planned once however many requests wait, built beside the old one, and given up in words."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.audit.log import record
from service.infra.db import now
from service.infra.tables import Lineage, Model, Task, Version
from service.models.generations import open_lineage
from service.models.retrain_plan import budget_of, candidate_of, measured_seconds, waiting_for_retrain
from service.requests.states import AWAITING_CONSUMERS, AWAITING_RETRAIN
from service.requests.status import settle
from unlearning.accounting.certificate import Basis
from unlearning.accounting.policy import OnExhausted, Policy
from workers.runtime.jobs import Retraining
from workers.runtime.lease import give_back_beside, take_beside
from workers.storage.key_store import batches
from workers.update.batches import HOLD_AFTER

OPEN = ("queued", "running")
SETTLED_AT_ONCE = 5_000


@dataclass(frozen=True)
class Refusal:
    """Why a candidate will not become head: in words, and in the word that its held tasks carry."""

    what: str
    hint: str
    reason: str = "retrain_refused"


def retrain_due(session: Session, model: Model) -> bool:
    """Whether a candidate waits to be built, or is to be planned."""
    planned = candidate_of(session, model.id) is not None
    return planned or _why(session, model, Policy.from_json(model.policy)) is not None


def plan_retrain(session: Session, model: Model, note: str | None = None) -> Lineage | None:
    """The model's candidate: the one that is planned, or a new one where a retrain is due; None where none is.

    ``note`` is sealed: why the fallback was taken. The caller holds the model's row locked.
    """
    return candidate_of(session, model.id) or _plan(session, model, note)


def claim_retrain(session: Session, model: Model, owner: str, at: int, lease_seconds: float) -> Retraining | None:
    """Take the lease of the model's candidate, planning one where it is due. None: none is, or others are at it."""
    lineage = plan_retrain(session, model)
    if lineage is None:
        return None
    lease = take_beside(session, model.id, owner, at, lease_seconds)
    if lease is None:
        return None
    if lineage.attempts >= HOLD_AFTER:
        what = f"{HOLD_AFTER} attempts ended without a result, the last in phase {lineage.phase}."
        refuse_candidate(session, model, lineage, Refusal(what, "Read the worker's log.", "worker_lost"))
        return None
    lineage.attempts += 1
    record(session, model.tenant_id, "retrain.claimed", model_id=model.id, lineage=lineage.id, attempt=lineage.attempts)
    return Retraining(
        lease=lease,
        tenant_id=model.tenant_id,
        model_name=model.name,
        recipe=model.recipe,
        policy=Policy.from_json(model.policy).in_force(lineage.method),
        lineage_id=lineage.id,
        attempt=lineage.attempts,
    )


def refuse_candidate(session: Session, model: Model, lineage: Lineage, why: Refusal) -> None:
    """The candidate will not become head. The old lineage stays; whoever waits for the retrain is held, visibly."""
    at = now(session)
    lineage.status, lineage.ended_at = "refused", at
    lineage.report = (lineage.report or {}) | {"refused": {"what": why.what, "hint": why.hint}}
    model.reason, model.due_at = f"The retrain was refused. {why.what} {why.hint}", None
    give_back_beside(session, model.id)
    record(session, model.tenant_id, "retrain.refused", model_id=model.id, lineage=lineage.id, reason=why.reason)
    tasks = session.scalars(select(Task).where(*waiting_for_retrain(model))).all()
    for task in tasks:
        task.status, task.reason = "held", why.reason
    for batch in batches((task.request_id for task in tasks), SETTLED_AT_ONCE):
        settle(session, batch)


def note_of(lineage: Lineage) -> str | None:
    """Why the fallback was taken, sealed; None where it was not."""
    note = (lineage.manifest or {}).get("note")
    return note if isinstance(note, str) else None


def _plan(session: Session, model: Model, note: str | None) -> Lineage | None:
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
        report={"reason": why, "eta_seconds": measured_seconds(session.get_one(Lineage, model.lineage_id))},
        manifest={"note": note},
        created_at=now(session),
    )
    open_lineage(session, lineage)
    record(session, model.tenant_id, "retrain.planned", model_id=model.id, lineage=lineage.id, **(lineage.report or {}))
    return lineage


def _why(session: Session, model: Model, policy: Policy) -> str | None:
    """Why a retrain is due now; None where it is not.

    After one was refused, nothing but a request that waits brings the next: it would only be refused again.
    """
    queued = select(func.count()).select_from(Task).where(Task.model_id == model.id, Task.status.in_(OPEN))
    queued = queued.where(func.coalesce(Task.reason, "") != AWAITING_CONSUMERS)
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
    return budget_of(session.get_one(Lineage, model.lineage_id, populate_existing=True)).exhausted
