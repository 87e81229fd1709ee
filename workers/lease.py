"""A model's lease: who may work on it, until when, and the token that a publication must still hold.

The database's clock alone decides. The token grows by one at each claim and never falls, so a worker that was
declared lost cannot write, however late it wakes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.records import Model

SECOND = 1_000_000


@dataclass(frozen=True)
class Lease:
    """``token`` is what the fence compares."""

    model_id: str
    token: int


class Stale(RuntimeError):
    """The lease was taken over: this worker may write nothing about the model any more."""


def lock(session: Session, model_id: str) -> Model | None:
    """The model's row, locked until the transaction ends."""
    query = select(Model).where(Model.id == model_id).with_for_update().execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def fence(session: Session, lease: Lease) -> Model:
    """The model's row, locked, if the lease is still this one and was not given back. Raises Stale."""
    model = lock(session, lease.model_id)
    if model is None or model.lease_token != lease.token or model.lease_expires_at == 0:
        raise Stale(f"the lease {lease.token} on model {lease.model_id} was taken over or given back")
    return model


def take(model: Model, owner: str, at: int, seconds: float) -> Lease:
    """A new lease on a locked model row; clears the outstanding nudge."""
    model.lease_token += 1
    model.lease_owner = owner
    model.lease_expires_at = at + int(seconds * SECOND)
    model.nudged_at = 0
    return Lease(model.id, model.lease_token)


def give_back(model: Model) -> None:
    """End the lease on a locked model row."""
    model.lease_owner = None
    model.lease_expires_at = 0


def renew(session: Session, lease: Lease, at: int, seconds: float) -> bool:
    """Extend the lease if it is still ours and was not given back; otherwise nothing changes, and False."""
    extended = session.execute(
        update(Model)
        .where(Model.id == lease.model_id, Model.lease_token == lease.token, Model.lease_expires_at > 0)
        .values(lease_expires_at=at + int(seconds * SECOND))
        .returning(Model.id)
        .execution_options(synchronize_session=False)
    )
    return extended.first() is not None
