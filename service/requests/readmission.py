"""Lifting the suppression entries of a request: the person may be trained on again, in generations that begin
afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, aliased

from service.audit.log import record, recorded_at
from service.infra.tables import DeletionRequest, Generation, SuppressionEntry
from service.requests.states import Status

_ENDED = (Status.COMPLETED, Status.CANCELLED, Status.REJECTED)


class StillOpen(RuntimeError):
    """The request is not ended: what it asked for comes first. Nothing was changed."""


class GenerationBeginning(RuntimeError):
    """A generation is being prepared: whom it may hold was decided, or is now. Nothing was changed."""


@dataclass(frozen=True)
class Lifted:
    """``others``: requests whose suppression entries still keep out the same person, or some of the same samples."""

    stones: int
    others: int


def lift(session: Session, request: DeletionRequest, reason: str) -> Lifted:
    """Lift what is in force of the request's suppression entries. Twice is once; nothing that was released is undone.

    The reason stays in the table and out of the audit log, which nothing can be removed from.
    Raises StillOpen, LineageBeginning.
    """
    session.refresh(request, with_for_update=True)
    if request.status not in _ENDED:
        raise StillOpen
    stones = session.scalars(
        select(SuppressionEntry)
        .where(SuppressionEntry.request_id == request.id, SuppressionEntry.lifted_at.is_(None))
        .with_for_update()
    ).all()
    if stones:
        _refuse_beginnings(session, request.tenant_id)
        at = recorded_at(session)
        for stone in stones:
            stone.lifted_at, stone.lifted_reason = at, reason
        record(session, request.tenant_id, "suppression.lifted", request_id=request.id, suppressions=len(stones))
        session.flush()
    return Lifted(len(stones), _others(session, request))


def _refuse_beginnings(session: Session, tenant_id: str) -> None:
    beginning = (Generation.tenant_id == tenant_id) & Generation.status.in_(("preparing", "candidate"))
    if session.scalar(select(Generation.id).where(beginning).limit(1)) is not None:
        raise GenerationBeginning


def _others(session: Session, request: DeletionRequest) -> int:
    ours, theirs = aliased(SuppressionEntry), aliased(SuppressionEntry)
    same = or_(ours.subject_digest == theirs.subject_digest, ours.sample_digest == theirs.sample_digest)
    query = (
        select(func.count(theirs.request_id.distinct()))
        .join(ours, same)
        .where(ours.request_id == request.id, theirs.request_id != request.id)
        .where(theirs.tenant_id == request.tenant_id, theirs.lifted_at.is_(None))
    )
    return session.scalar(query) or 0
