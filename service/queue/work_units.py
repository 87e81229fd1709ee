"""Pieces of a preparation that any worker may take. The database knows the owner of each, and which are done.

A worker that dies loses its own pieces only: a piece without an owner's heartbeats is free again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from expunge.service.infra.db import Database, now
from expunge.service.infra.tables import CalibrationOrder, Generation, Heartbeat, Model, WorkUnit
from expunge.service.infra.time import SECOND
from expunge.service.models import model_lease
from expunge.service.queue.leases import is_held
from expunge.service.queue.serves import EVERYTHING, Serves

Piece: TypeAlias = CalibrationOrder | WorkUnit
BUILT = ("preparing", "candidate")
"""generations with pieces that may still be worked on"""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class WorkUnits:
    """All pieces of one kind of one generation, numbered from 0."""

    database: Database
    owner: str
    """the process that takes them"""
    lease_seconds: float
    record: type[Piece]
    generation_id: int

    def lay_out(self, session: Session, numbers: Iterable[int]) -> None:
        session.execute(
            insert(self.record), [{"generation_id": self.generation_id, "number": number} for number in numbers]
        )

    def clear(self) -> None:
        with self.database.write() as session:
            session.execute(delete(self.record).where(self.record.generation_id == self.generation_id))

    def count(self) -> int:
        return self._count()

    def done(self) -> int:
        return self._count(self.record.done_at.is_not(None))

    def take(self, session: Session) -> int | None:
        """Take the first free piece and return its number; None if all are done or taken."""
        found = self._free(now(session)).order_by(self.record.number).limit(1)
        row: Any = session.scalars(found.with_for_update(skip_locked=True)).one_or_none()
        if row is None:
            return None
        row.owner = self.owner
        return int(row.number)

    def any_free(self) -> bool:
        with self.database.read() as session:
            return session.scalars(self._free(now(session)).limit(1)).first() is not None

    def ours(self, session: Session, number: int) -> Any:
        """Return the piece, locked; None if it is done, or another worker owns it: its result must not be written."""
        query = select(self.record).where(self.record.generation_id == self.generation_id, self.record.number == number)
        row: Any = session.scalars(query.with_for_update()).one_or_none()
        mine = row is not None and row.owner == self.owner and row.done_at is None
        return row if mine else None

    def let_go(self, number: int) -> None:
        """Give a piece back that was not done."""
        with self.database.write() as session:
            row: Any = session.get(self.record, (self.generation_id, number))
            if row is not None and row.owner == self.owner and row.done_at is None:
                row.owner = None

    def _count(self, *which: Any) -> int:
        query = (
            select(func.count()).select_from(self.record).where(self.record.generation_id == self.generation_id, *which)
        )
        with self.database.read() as session:
            return session.scalar(query) or 0

    def _free(self, at: int) -> Any:
        """Return the query of free pieces: no owner, this process, or a process without a recent heartbeat."""
        span = int(self.lease_seconds * SECOND)
        beating = select(Heartbeat.process).where(Heartbeat.beat_at.between(at - span + 1, at + span))
        owner = self.record.owner
        return select(self.record).where(
            self.record.generation_id == self.generation_id,
            self.record.done_at.is_(None),
            or_(owner.is_(None), owner == self.owner, owner.not_in(beating)),
        )


def free_pieces(session: Session, owner: str) -> list[str]:
    """Give back the pieces that this process has not done; return the ids of their models, sorted."""
    found: set[str] = set()
    for record in (WorkUnit, CalibrationOrder):
        theirs = update(record).where(record.owner == owner, record.done_at.is_(None)).values(owner=None)
        freed = session.scalars(theirs.returning(record.generation_id)).all()
        if freed:
            found.update(session.scalars(select(Generation.model_id).where(Generation.id.in_(set(freed)))))
    return sorted(found)


def models_with_free_pieces(session: Session, serves: Serves = EVERYTHING) -> list[str]:
    """Return the ids of models that another worker prepares in pieces, with a piece that is free for this one, sorted.

    ``serves``: what the worker takes.
    """
    at = now(session)
    found: set[str] = set()
    for record in (WorkUnit, CalibrationOrder):
        query = (
            select(Model.id)
            .join(Generation, Generation.id == Model.generation_id)
            .join(record, record.generation_id == Generation.id)
            .where(Model.status == "preparing", serves.where(Model), is_held(model_lease("") + Model.id, at))
            .where(record.done_at.is_(None), record.owner.is_(None))
        )
        found.update(session.scalars(query.distinct()))
    return sorted(found)
