"""A candidate generation: planned once however many requests wait, built beside the old one, and given up in words."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.audit.log import record
from service.infra.db import now
from service.infra.tables import Generation, Model, Task, Version
from service.models.generations import open_generation
from service.models.retrain_plan import budget_of, candidate_of, measured_seconds, waiting_for_retrain
from service.requests.reasons import Reason
from service.requests.status import settle
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import OnExhausted, Policy
from workers.runtime.jobs import Retraining
from workers.runtime.lease import give_back_beside, take_beside
from workers.storage.key_store import batches
from workers.update.batches import HOLD_AFTER

OPEN = ("queued", "running")
SETTLED_AT_ONCE = 5_000


@dataclass(frozen=True)
class Refusal:
    """Why a candidate will not become head: in words, and in the word that its blocked tasks carry."""

    what: str
    hint: str
    reason: Reason = Reason.RETRAIN_REFUSED


def retrain_due(session: Session, model: Model) -> bool:
    """Whether a candidate waits to be built, or is to be planned."""
    planned = candidate_of(session, model.id) is not None
    return planned or _why(session, model, Policy.from_json(model.policy)) is not None


def plan_retrain(session: Session, model: Model, note: str | None = None) -> Generation | None:
    """The model's candidate: the one that is planned, or a new one where a retrain is due; None where none is.

    ``note`` is sealed: why the fallback was taken. The caller holds the model's row locked.
    """
    return candidate_of(session, model.id) or _plan(session, model, note)


def claim_retrain(session: Session, model: Model, owner: str, at: int, lease_seconds: float) -> Retraining | None:
    """Take the lease of the model's candidate, planning one where it is due. None: none is, or others are at it."""
    generation = plan_retrain(session, model)
    if generation is None:
        return None
    lease = take_beside(session, model.id, owner, at, lease_seconds)
    if lease is None:
        return None
    if generation.attempts >= HOLD_AFTER:
        what = f"{HOLD_AFTER} attempts ended without a result, the last in phase {generation.phase}."
        refuse_candidate(session, model, generation, Refusal(what, "Read the worker's log.", Reason.WORKER_LOST))
        return None
    generation.attempts += 1
    record(
        session,
        model.tenant_id,
        "retrain.claimed",
        model_id=model.id,
        generation=generation.id,
        attempt=generation.attempts,
    )
    return Retraining(
        lease=lease,
        tenant_id=model.tenant_id,
        model_name=model.name,
        recipe=model.recipe,
        policy=Policy.from_json(model.policy).in_force(generation.method),
        generation_id=generation.id,
        attempt=generation.attempts,
    )


def refuse_candidate(session: Session, model: Model, generation: Generation, why: Refusal) -> None:
    """The candidate will not become current. The old generation stays; whoever waits for the retrain is blocked,
    visibly.
    """
    at = now(session)
    generation.status, generation.ended_at = "refused", at
    generation.report = (generation.report or {}) | {"refused": {"what": why.what, "hint": why.hint}}
    model.reason, model.due_at = f"The retrain was refused. {why.what} {why.hint}", None
    give_back_beside(session, model.id)
    record(session, model.tenant_id, "retrain.refused", model_id=model.id, generation=generation.id, reason=why.reason)
    tasks = session.scalars(select(Task).where(*waiting_for_retrain(model))).all()
    for task in tasks:
        task.status, task.reason = "blocked", why.reason
    for batch in batches((task.request_id for task in tasks), SETTLED_AT_ONCE):
        settle(session, batch)


def note_of(generation: Generation) -> str | None:
    """Why the fallback was taken, sealed; None where it was not."""
    note = (generation.manifest or {}).get("note")
    return note if isinstance(note, str) else None


def _plan(session: Session, model: Model, note: str | None) -> Generation | None:
    """One plan for the whole queue, with what it is for and how long the last training took."""
    policy = Policy.from_json(model.policy)
    why = _why(session, model, policy)
    if why is None:
        return None
    generation = Generation(
        tenant_id=model.tenant_id,
        model_id=model.id,
        status="candidate",
        method=policy.method,
        guarantee=Guarantee.NONE.value,
        noise_std=policy.noise_std,
        max_distance=policy.max_distance,
        epsilon=policy.epsilon,
        delta=policy.delta,
        report={"reason": why, "eta_seconds": measured_seconds(session.get_one(Generation, model.generation_id))},
        manifest={"note": note},
        created_at=now(session),
    )
    open_generation(session, generation)
    record(
        session,
        model.tenant_id,
        "retrain.planned",
        model_id=model.id,
        generation=generation.id,
        **(generation.report or {}),
    )
    return generation


def _why(session: Session, model: Model, policy: Policy) -> str | None:
    """Why a retrain is due now; None where it is not.

    After one was refused, nothing but a request that waits brings the next: it would only be refused again.
    """
    queued = select(func.count()).select_from(Task).where(Task.model_id == model.id, Task.status.in_(OPEN))
    queued = queued.where(func.coalesce(Task.reason, "") != Reason.AWAITING_CONSUMERS)
    if session.scalar(queued.where(Task.reason == Reason.AWAITING_RETRAIN)):
        return "fallback"
    if policy.on_exhausted is not OnExhausted.RETRAIN or model.status != "exhausted":
        return None
    published_at = session.scalar(select(Version.published_at).where(Version.id == model.current_id))
    refused = session.scalar(
        select(Generation.id).where(
            Generation.model_id == model.id, Generation.status == "refused", Generation.created_at >= published_at
        )
    )
    return Reason.BUDGET_EXHAUSTED if refused is None or session.scalar(queued) else None


def exhausted(session: Session, model: Model) -> bool:
    """Whether the next update of the current version's generation does not fit into its budget."""
    return budget_of(session.get_one(Generation, model.generation_id, populate_existing=True)).exhausted
