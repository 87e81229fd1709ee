"""Leases: which process may work on a model, until when, and the token that a publication must still hold.

A model has one for preparations and updates, and one for its retrain, so that the old generation can publish updates
meanwhile. Only the database's clock decides. A token is drawn at random for each claim, so a worker that was declared
lost cannot write, however late it continues: not even where the database lost the claim after it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Update, select, update
from sqlalchemy.orm import Session

from expunge.service.infra.db import now
from expunge.service.infra.tables import Lease, Model
from expunge.service.infra.time import SECOND
from expunge.service.models import model_lease


@dataclass(frozen=True)
class TakenLease:
    """A lease that was taken. ``token`` is what ``fence`` compares."""

    name: str
    token: int

    @property
    def model_id(self) -> str:
        """Return the id of the model that the lease is named after."""
        return self.name.partition(":")[2]


class Stale(RuntimeError):
    """The lease was taken over or released: this worker may not write under it any more."""


def in_force(at: int) -> ColumnElement[bool]:
    """Return the condition that a lease is in force at a moment. One that was renewed far later than now is over: the
    database's clock had jumped ahead, and is back.
    """
    return (Lease.expires_at > at) & (2 * Lease.renewed_at - Lease.expires_at <= at)


def is_held(name: ColumnElement[str], at: int) -> ColumnElement[bool]:
    """Return the condition that the lease ``name`` of a query's row is in force at a moment."""
    return select(Lease.name).where(Lease.name == name, in_force(at)).exists()


def lock(session: Session, model_id: str, at: int) -> tuple[Model, bool] | None:
    """Return the model's row and whether its lease is held, both locked until the transaction ends; None: no model."""
    query = select(Model, in_force(at)).join(Lease, Lease.name == model_lease(model_id)).where(Model.id == model_id)
    found = session.execute(query.with_for_update().execution_options(populate_existing=True)).one_or_none()
    return None if found is None else (found[0], bool(found[1]))


def fence(session: Session, lease: TakenLease) -> Model:
    """Return the model's row, locked as its lease is. Raises Stale if the lease was taken over or released."""
    query = select(Model, Lease.token).join(Lease, Lease.name == lease.name).where(Model.id == lease.model_id)
    found = session.execute(query.with_for_update().execution_options(populate_existing=True)).one_or_none()
    if found is None:
        raise Stale(f"The model {lease.model_id} does not exist any more.")
    model, token = found
    if token != lease.token:
        raise Stale(f"Another worker took over model {model.id} (lease {lease.name}, {lease.token}).")
    return model


def take(session: Session, name: str, owner: str, at: int, seconds: float) -> TakenLease | None:
    """Take the lease under a token of its own. Return None while another claim has it."""
    lease = TakenLease(name, 1 + secrets.randbits(62))
    free = update(Lease).where(Lease.name == name, ~in_force(at)).values(token=lease.token, owner=owner)
    return lease if _extend(session, free, at, seconds) else None


def renew(session: Session, lease: TakenLease, at: int, seconds: float) -> bool:
    """Extend the lease by ``seconds`` if it is still this one; return False otherwise."""
    ours = update(Lease).where(Lease.name == lease.name, Lease.token == lease.token)
    return _extend(session, ours, at, seconds)


def release(session: Session, *names: str, until: int = 0) -> None:
    """End these leases, whoever has them: no token is 0. They cannot be taken before ``until`` (microseconds)."""
    at = now(session) if until else 0
    ended = update(Lease).where(Lease.name.in_(names)).values(token=0, expires_at=until, renewed_at=at)
    session.execute(ended.execution_options(synchronize_session=False))


def _extend(session: Session, chosen: Update, at: int, seconds: float) -> bool:
    """Let the chosen lease end ``seconds`` from now. Return whether there was one to choose."""
    extended = chosen.values(expires_at=at + int(seconds * SECOND), renewed_at=at).returning(Lease.name)
    return session.execute(extended.execution_options(synchronize_session=False)).first() is not None
