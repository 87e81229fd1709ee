"""Leases: which process may work on a model, until when, and the token that a publication must still hold.

A model has a lease for preparations and updates. A retrain has a second, named one, so that the old generation can
publish updates meanwhile. Only the database's clock decides. A token grows by one at each claim and never falls, so a
worker that was declared lost cannot write, however late it continues.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.infra.tables import Lease, Model
from service.infra.time import SECOND
from service.models.retrain_plan import retrain_lease


@dataclass(frozen=True)
class TakenLease:
    """A lease that was taken. ``token`` is what ``fence`` compares. ``name`` is None for the model's own lease."""

    model_id: str
    token: int
    name: str | None = None


class Stale(RuntimeError):
    """The lease was taken over or given back: this worker may not write under it any more."""


def lock(session: Session, model_id: str) -> Model | None:
    """Return the model's row, locked until the transaction ends; None if there is no such model."""
    query = select(Model).where(Model.id == model_id).with_for_update().execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def fence(session: Session, lease: TakenLease) -> Model:
    """Return the model's row, locked. Raises Stale if the lease was taken over or given back."""
    model = lock(session, lease.model_id)
    if model is None:
        raise Stale(f"The model {lease.model_id} does not exist any more.")
    token, expires_at = model.lease_token, model.lease_expires_at
    if lease.name is not None:
        named = _lock_named(session, lease.name)
        token, expires_at = (named.token, named.expires_at) if named else (0, 0)
    if token != lease.token or expires_at == 0:
        raise Stale(f"Another worker took over model {model.id} (lease {lease.name or 'of the model'}, {lease.token}).")
    return model


def take(model: Model, owner: str, at: int, seconds: float) -> TakenLease:
    """Take a new lease on a locked model row."""
    model.lease_token += 1
    model.lease_owner = owner
    model.lease_expires_at = at + int(seconds * SECOND)
    return TakenLease(model.id, model.lease_token)


def take_beside(session: Session, model_id: str, owner: str, at: int, seconds: float) -> TakenLease | None:
    """Take the lease for a model's retrain; the model's row is locked. Return None while it is taken."""
    name = retrain_lease(model_id)
    named = _lock_named(session, name)
    if named is None:
        named = Lease(name=name, token=0, owner=owner, expires_at=0)
        session.add(named)
    if named.expires_at > at:
        return None
    named.token += 1
    named.owner, named.expires_at = owner, at + int(seconds * SECOND)
    return TakenLease(model_id, named.token, name)


def give_back(model: Model) -> None:
    """End the lease on a locked model row."""
    model.lease_owner = None
    model.lease_expires_at = 0


def give_back_beside(session: Session, model_id: str, until: int = 0) -> None:
    """End the lease of a model's retrain. It cannot be taken before ``until`` (microseconds)."""
    named = _lock_named(session, retrain_lease(model_id))
    if named is not None:
        named.token += 1 if until else 0
        named.expires_at = until


def renew(session: Session, lease: TakenLease, at: int, seconds: float) -> bool:
    """Extend the lease by ``seconds`` if it is still this one; return False otherwise."""
    until = at + int(seconds * SECOND)
    own = (
        update(Model)
        .where(Model.id == lease.model_id, Model.lease_token == lease.token, Model.lease_expires_at > 0)
        .values(lease_expires_at=until)
        .returning(Model.id)
    )
    beside = (
        update(Lease)
        .where(Lease.name == lease.name, Lease.token == lease.token, Lease.expires_at > 0)
        .values(expires_at=until)
        .returning(Lease.name)
    )
    chosen = own if lease.name is None else beside
    return session.execute(chosen.execution_options(synchronize_session=False)).first() is not None


def _lock_named(session: Session, name: str) -> Lease | None:
    query = select(Lease).where(Lease.name == name).with_for_update()
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()
