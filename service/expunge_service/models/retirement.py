"""Ending a model: retiring one that is served, or cancelling one that is still prepared.

Both are one transaction under the model's row lock. A worker that computes for the model loses its lease in it, so it
publishes no version afterwards. What is left of the weights and the keys is destroyed by the scheduler right after, see
``expunge_workers.storage.crypto_erase``.
"""

from __future__ import annotations

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from expunge_service.audit import record, recorded_at
from expunge_service.infra.db import batches
from expunge_service.infra.tables import Erasure, Generation, Lease, Model, Removal, Version
from expunge_service.models.figures import withdraw
from expunge_service.models.registration import model_lease
from expunge_service.models.retrain_plan import retrain_lease
from expunge_service.models.vectors import drop_all_vectors
from expunge_service.models.withheld import is_withheld
from expunge_service.requests import (
    LIFT,
    OPEN_HOLD,
    PUBLISH,
    REGISTER,
    RETIRE,
    RETRAIN,
    Reason,
    RequestRefused,
    WayOut,
    actions,
    end_open_tasks,
    end_unpublished,
    held_by,
)

SERVED = ("live", "exhausted")
_RETIRED = "It was retired. No version is served, and its state and keys are destroyed."
_CANCELLED = "Its preparation was cancelled. Nothing was published."


def retire(session: Session, model: Model) -> None:
    """Stop serving a model permanently, or end the preparation of one that was never published. Idempotent.

    Of a model that is prepared the name is free for another, and requests that waited for it go on without it.

    Its people's requests end in it, which their tasks say (``model_retired``). Copies of its
    versions are not known, so no claim is made about them. The caller has locked the model's row. A model that a
    restore retired may still have what a legal hold kept in it: that ends now.

    Raises:
        RequestRefused: the model is neither prepared nor served, or a legal hold keeps samples in it.
    """
    generation = session.get(Generation, model.generation_id or 0)
    if model.status == "retired" and (generation is None or generation.status == "ended"):
        return
    if model.status == "cancelled":
        return
    if model.status == "preparing":
        end_cancelled(session, model)
        record(session, model.tenant_id, "model.cancelled", model_id=model.id, name=model.name)
        session.flush()
        return
    if model.status not in (*SERVED, "retired"):
        what = f"The model is {model.status}: only a model that is prepared or served can be retired."
        raise RequestRefused(409, "not_served", what)
    _require_no_hold(session, model)
    end_retired(session, model)
    record(session, model.tenant_id, "model.retired", model_id=model.id, name=model.name)
    session.flush()


def end_retired(session: Session, model: Model) -> None:
    """Do what ``retire`` does for a model that is served, without its checks and its audit entry."""
    at = recorded_at(session)
    _end(session, model, "retired", _RETIRED)
    served = session.get(Version, model.current_id) if model.current_id else None
    if served is not None and served.status == "current":
        served.status, served.retired_at = "retired", at
    _erase_people(session, model, at)
    end_open_tasks(session, model.id, Reason.MODEL_RETIRED)


def end_cancelled(session: Session, model: Model) -> None:
    """Do what ``retire`` does for a model that is prepared, without its checks and its audit entry."""
    _end(session, model, "cancelled", _CANCELLED)
    end_unpublished(session, model)


def steps_of(model: Model) -> tuple[WayOut, ...]:
    """Return the steps out that a model offers by itself: where it is blocked, refused, or not yet published."""
    match model.status:
        case "preparing":
            return (PUBLISH, RETIRE) if is_withheld(model) else (RETIRE,)
        case "refused" | "cancelled":
            return (REGISTER,)
        case "exhausted":
            return Reason.BUDGET_EXHAUSTED.steps
        case "live" if model.reason is not None:  # its last retrain was refused
            return (RETRAIN,)
    return ()


def _end(session: Session, model: Model, status: str, why: str) -> None:
    """Write the status, end the model's generations, and end the leases of the workers on them."""
    model.status, model.reason, model.due_at, model.retrain_at = status, why, None, None
    # no worker has the token 0: nothing is published and nothing renewed under these leases
    leases = Lease.name.in_((model_lease(model.id), retrain_lease(model.id)))
    session.execute(update(Lease).where(leases).values(token=0, expires_at=0))
    withdraw(session, Generation.model_id == model.id)
    open_ones = update(Generation).where(
        Generation.model_id == model.id, Generation.status.in_(("preparing", "candidate", "live"))
    )
    session.execute(open_ones.values(status="ended", phase=None, ended_at=recorded_at(session)))
    session.flush()


def _erase_people(session: Session, model: Model, at: int) -> None:
    """Delete all vectors of the served generation, and order the destruction of their keys."""
    generation_id = model.generation_id or 0
    rows = [
        {"tenant_id": model.tenant_id, "generation_id": generation_id, "key_id": key_id, "created_at": at}
        for key_id in drop_all_vectors(session, generation_id)
    ]
    for batch in batches(rows):
        session.execute(insert(Erasure), batch)


def holds_in(session: Session, model: Model) -> list[str]:
    """Return the ids of the legal holds that keep samples in the model, sorted."""
    generation_id = model.generation_id or 0
    gone = set(session.scalars(select(Removal.position).where(Removal.generation_id == generation_id)))
    held = held_by(session, model.tenant_id, generation_id)
    return sorted(hold for hold, kept in held.items() if not kept <= gone)


def _require_no_hold(session: Session, model: Model) -> None:
    """Check that no legal hold keeps samples in the model, which are destroyed with it. Raises RequestRefused."""
    holds = holds_in(session, model)
    if holds:
        what = "A legal hold keeps samples in this model. Lift the hold when its legal reason is gone, then retire it."
        raise RequestRefused(409, "legal_hold", what, actions=actions((OPEN_HOLD, LIFT), hold=holds))
