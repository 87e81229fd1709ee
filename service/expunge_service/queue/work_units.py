"""Pieces of a preparation that any worker may take. The database knows the owner of each, and which are done.

A worker that dies loses its own pieces only: a piece without an owner's heartbeats is free again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from expunge_service.infra.db import Database, now
from expunge_service.infra.tables import CalibrationOrder, Generation, GenerationPart, Heartbeat, Model, WorkUnit
from expunge_service.infra.time import SECOND
from expunge_service.models import model_lease
from expunge_service.queue.leases import is_held
from expunge_service.queue.serves import EVERYTHING, Serves

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
    record: type[WorkUnit | CalibrationOrder]
    generation_id: int

    def lay_out(self, session: Session, numbers: Iterable[int]) -> None:
        kind, rows = self.record.__mapper__.polymorphic_identity, []
        for number in numbers:
            rows.append({"generation_id": self.generation_id, "key": f"{kind} {number:06}", "number": number})
        session.execute(insert(self.record), rows)

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
        row: WorkUnit | CalibrationOrder | None
        row = session.scalars(found.with_for_update(skip_locked=True)).one_or_none()
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
            row = self.ours(session, number)
            if row is not None:
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
    theirs = (
        update(GenerationPart).where(GenerationPart.owner == owner, GenerationPart.done_at.is_(None)).values(owner=None)
    )
    freed = set(session.scalars(theirs.returning(GenerationPart.generation_id)))
    return sorted(set(session.scalars(select(Generation.model_id).where(Generation.id.in_(freed))))) if freed else []


def models_with_free_pieces(session: Session, serves: Serves = EVERYTHING) -> list[str]:
    """Return the ids of models that another worker prepares in pieces, with a piece that is free for this one, sorted.

    ``serves``: what the worker takes.
    """
    query = (
        select(Model.id)
        .join(Generation, Generation.id == Model.generation_id)
        .join(GenerationPart, GenerationPart.generation_id == Generation.id)
        .where(Model.status == "preparing", serves.where(Model), is_held(model_lease("") + Model.id, now(session)))
        .where(GenerationPart.done_at.is_(None), GenerationPart.owner.is_(None))
    )
    return sorted(session.scalars(query.distinct()))
