"""Pieces of a preparation that any worker may take: the database says whose each one is, and which are done.

A worker that dies loses the pieces in its hands and no others: one whose owner's heart no longer beats is free again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import delete, func, insert, or_, select
from sqlalchemy.orm import Session

from service.infra.db import now
from service.infra.tables import CalibrationOrder, Generation, Heartbeat, Model, WorkUnit
from service.infra.time import SECOND
from workers.runtime.process import Process

Piece: TypeAlias = CalibrationOrder | WorkUnit
BUILT = ("preparing", "candidate")
"""generations whose pieces may still be worked on"""
POLL_SECONDS = 0.2


class Taken(RuntimeError):
    """The piece is another worker's by now, or its preparation is over: nothing may be written for it."""


@dataclass(frozen=True)
class Pieces:
    """All pieces of one kind of one generation, numbered from 0."""

    process: Process
    record: type[Piece]
    generation_id: int

    def lay_out(self, session: Session, count: int) -> None:
        session.execute(
            insert(self.record), [{"generation_id": self.generation_id, "number": number} for number in range(count)]
        )

    def clear(self) -> None:
        with self.process.storage.database.write() as session:
            session.execute(delete(self.record).where(self.record.generation_id == self.generation_id))

    def count(self) -> int:
        return self._count()

    def done(self) -> int:
        return self._count(self.record.done_at.is_not(None))

    def take(self, session: Session) -> int | None:
        """The first free piece, now ours; None: all are done or in other hands."""
        found = self._free(now(session)).order_by(self.record.number).limit(1)
        row: Any = session.scalars(found.with_for_update(skip_locked=True)).one_or_none()
        if row is None:
            return None
        row.owner = self.process.owner
        return int(row.number)

    def any_free(self) -> bool:
        with self.process.storage.database.read() as session:
            return session.scalars(self._free(now(session)).limit(1)).first() is not None

    def ours(self, session: Session, number: int) -> Any:
        """The piece, locked, while it is ours and not done. Raises Taken."""
        query = select(self.record).where(self.record.generation_id == self.generation_id, self.record.number == number)
        row: Any = session.scalars(query.with_for_update()).one_or_none()
        if row is None or row.owner != self.process.owner or row.done_at is not None:
            raise Taken(f"piece {number} of generation {self.generation_id} is not ours any more")
        return row

    def let_go(self, number: int) -> None:
        """Give a piece back that was not done."""
        with self.process.storage.database.write() as session:
            row: Any = session.get(self.record, (self.generation_id, number))
            if row is not None and row.owner == self.process.owner and row.done_at is None:
                row.owner = None

    def _count(self, *which: Any) -> int:
        query = (
            select(func.count()).select_from(self.record).where(self.record.generation_id == self.generation_id, *which)
        )
        with self.process.storage.database.read() as session:
            return session.scalar(query) or 0

    def _free(self, at: int) -> Any:
        """Pieces in nobody's hands: no owner, this process, or one that has stopped beating."""
        alive = at - int(self.process.settings.lease_seconds * SECOND)
        beating = select(Heartbeat.process).where(Heartbeat.beat_at > alive)
        owner = self.record.owner
        return select(self.record).where(
            self.record.generation_id == self.generation_id,
            self.record.done_at.is_(None),
            or_(owner.is_(None), owner == self.process.owner, owner.not_in(beating)),
        )


def models_with_free_pieces(session: Session, tenants: Collection[str] | None = None) -> list[str]:
    """Ids of the models that another worker is preparing in pieces, while some piece has no owner, in order.

    ``tenants``: whom the worker serves; None: everyone.
    """
    at = now(session)
    found: set[str] = set()
    for record in (WorkUnit, CalibrationOrder):
        query = (
            select(Model.id)
            .join(Generation, Generation.id == Model.generation_id)
            .join(record, record.generation_id == Generation.id)
            .where(Model.status == "preparing", Model.lease_expires_at > at)
            .where(record.done_at.is_(None), record.owner.is_(None))
        )
        served = query if tenants is None else query.where(Model.tenant_id.in_(sorted(tenants)))
        found.update(session.scalars(served.distinct()))
    return sorted(found)
