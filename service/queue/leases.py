"""Leases: which process may work on a model, until when, and the token that a publication must still hold.

A model has a lease for preparations and updates. A retrain has a second, named one, so that the old generation can
publish updates meanwhile. Only the database's clock decides. A token is drawn at random for each claim, so a worker
that was declared lost cannot write, however late it continues: not even where the database lost the claim after it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from expunge.service.infra.db import now
from expunge.service.infra.tables import Lease, Model
from expunge.service.infra.time import SECOND
from expunge.service.models import retrain_lease


@dataclass(frozen=True)
class TakenLease:
    """A lease that was taken. ``token`` is what ``fence`` compares. ``name`` is None for the model's own lease."""

    model_id: str
    token: int
    name: str | None = None


def drawn() -> int:
    """Return a new token."""
    return secrets.randbits(63)


def alive(row: Model | Lease, at: int) -> bool:
    """Return whether the row's lease is in force at a moment. One that was renewed far later than now is over: the
    database's clock had jumped ahead, and is back.
    """
    ends, renewed = _columns(row)
    return bool(ends > at >= 2 * renewed - ends)


def alive_at(record: type[Model] | type[Lease], at: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return ``alive`` as a condition of a query."""
    ends, renewed = _columns(record)
    condition: ColumnElement[bool] = (ends > at) & (2 * renewed - ends <= at)
    return condition


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
    model.lease_token, model.lease_owner = drawn(), owner
    model.lease_expires_at, model.lease_renewed_at = at + int(seconds * SECOND), at
    return TakenLease(model.id, model.lease_token)


def take_beside(session: Session, model_id: str, owner: str, at: int, seconds: float) -> TakenLease | None:
    """Take the lease for a model's retrain; the model's row is locked. Return None while it is taken."""
    name = retrain_lease(model_id)
    named = _lock_named(session, name)
    if named is None:
        named = Lease(name=name, token=0, owner=owner, expires_at=0)
        session.add(named)
    if alive(named, at):
        return None
    named.token, named.owner = drawn(), owner
    named.expires_at, named.renewed_at = at + int(seconds * SECOND), at
    return TakenLease(model_id, named.token, name)


def give_back(model: Model) -> None:
    """End the lease on a locked model row."""
    model.lease_owner = None
    model.lease_expires_at = 0


def give_back_beside(session: Session, model_id: str, until: int = 0) -> None:
    """End the lease of a model's retrain. It cannot be taken before ``until`` (microseconds)."""
    named = _lock_named(session, retrain_lease(model_id))
    if named is not None:
        named.token = drawn() if until else named.token
        named.expires_at, named.renewed_at = until, now(session) if until else 0


def renew(session: Session, lease: TakenLease, at: int, seconds: float) -> bool:
    """Extend the lease by ``seconds`` if it is still this one; return False otherwise."""
    until = at + int(seconds * SECOND)
    own = (
        update(Model)
        .where(Model.id == lease.model_id, Model.lease_token == lease.token, Model.lease_expires_at > 0)
        .values(lease_expires_at=until, lease_renewed_at=at)
        .returning(Model.id)
    )
    beside = (
        update(Lease)
        .where(Lease.name == lease.name, Lease.token == lease.token, Lease.expires_at > 0)
        .values(expires_at=until, renewed_at=at)
        .returning(Lease.name)
    )
    chosen = own if lease.name is None else beside
    return session.execute(chosen.execution_options(synchronize_session=False)).first() is not None


def _lock_named(session: Session, name: str) -> Lease | None:
    query = select(Lease).where(Lease.name == name).with_for_update()
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def _columns(place: Any) -> tuple[Any, Any]:
    """Return when a lease ends, and when it was renewed last, of a row or of its table."""
    named = place is Lease or isinstance(place, Lease)
    return (place.expires_at, place.renewed_at) if named else (place.lease_expires_at, place.lease_renewed_at)
