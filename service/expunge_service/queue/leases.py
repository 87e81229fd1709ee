"""Leases: which process may work on a model, until when, and the token that a publication must still hold.

A model has one for preparations and updates, and one for its retrain, so that the old generation can publish updates
meanwhile. Only the database's clock decides. A token is drawn at random for each claim, so a worker that was declared
lost cannot write, however late it continues: not even where the database lost the claim after it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, bindparam, select, update
from sqlalchemy.orm import Session

from expunge_service.audit import record_at
from expunge_service.infra.db import NOW, now
from expunge_service.infra.tables import Lease, Model
from expunge_service.infra.time import SECOND
from expunge_service.models import model_lease


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


def in_force(at: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a lease is in force at a moment. One that was renewed far later than now is over: the
    database's clock had jumped ahead, and is back.
    """
    return (Lease.expires_at > at) & (2 * Lease.renewed_at - Lease.expires_at <= at)


def is_held(name: ColumnElement[str], at: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that the lease ``name`` of a query's row is in force at a moment."""
    return select(Lease.name).where(Lease.name == name, in_force(at)).exists()


_PLACE = Model.id == bindparam("model")
_LEASE = Lease.name == bindparam("lease")
_FRESH = {"populate_existing": True}
_LEASES = Lease.__table__
_EXTENSION: dict[str, Any] = {"expires_at": bindparam("until"), "renewed_at": bindparam("at")}
_LOCK = (
    select(Model, in_force(NOW), NOW).join(Lease, _LEASE).where(_PLACE).with_for_update().execution_options(**_FRESH)
)


def lock(session: Session, model_id: str) -> tuple[Model, bool] | None:
    """Return the model's row and whether its lease is held, both locked until the transaction ends; None: no model."""
    found = session.execute(_LOCK, {"model": model_id, "lease": model_lease(model_id)}).one_or_none()
    if found is None:
        return None
    model, held, at = found
    record_at(session, at)
    return model, bool(held)


_FENCE = select(Model, Lease.token, NOW).join(Lease, _LEASE).where(_PLACE).with_for_update().execution_options(**_FRESH)


def fence(session: Session, lease: TakenLease) -> Model:
    """Return the model's row, locked as its lease is. Raises Stale if the lease was taken over or released."""
    found = session.execute(_FENCE, {"model": lease.model_id, "lease": lease.name}).one_or_none()
    if found is None:
        raise Stale(f"The model {lease.model_id} does not exist any more.")
    model, token, at = found
    if token != lease.token:
        raise Stale(f"Another worker took over model {model.id} (lease {lease.name}, {lease.token}).")
    record_at(session, at)
    return model


_TAKE = (
    update(_LEASES)
    .where(_LEASES.c.name == bindparam("lease"), ~in_force(bindparam("at")))
    .values(token=bindparam("new"), owner=bindparam("whose"), **_EXTENSION)
    .returning(_LEASES.c.name)
)


def take(session: Session, name: str, owner: str, at: int, seconds: float) -> TakenLease | None:
    """Take the lease under a token of its own. Return None while another claim has it."""
    lease = TakenLease(name, 1 + secrets.randbits(62))
    taken = session.execute(_TAKE, {"new": lease.token, "whose": owner, **_extension(name, at, seconds)})
    return lease if taken.first() is not None else None


_RENEW = (
    update(_LEASES)
    .where(_LEASES.c.name == bindparam("lease"), _LEASES.c.token == bindparam("held"))
    .values(**_EXTENSION)
    .returning(_LEASES.c.name)
)


def renew(session: Session, lease: TakenLease, at: int, seconds: float) -> bool:
    """Extend the lease by ``seconds`` if it is still this one; return False otherwise."""
    return session.execute(_RENEW, {"held": lease.token, **_extension(lease.name, at, seconds)}).first() is not None


_RELEASE = update(_LEASES).where(_LEASES.c.name.in_(bindparam("leases", expanding=True))).values(token=0, **_EXTENSION)


def release(session: Session, *names: str, until: int = 0) -> None:
    """End these leases of any worker: no token is 0. They cannot be taken before ``until`` (microseconds)."""
    at = now(session) if until else 0
    session.execute(_RELEASE, {"leases": names, "until": until, "at": at})


def _extension(name: str, at: int, seconds: float) -> dict[str, str | int]:
    return {"lease": name, "at": at, "until": at + int(seconds * SECOND)}
