"""Deadlines: extending one, once and on record; and warning of those that are near."""

from __future__ import annotations

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from expunge.service.audit import record, recorded_at
from expunge.service.infra.db import Database, now
from expunge.service.infra.tables import DeletionRequest
from expunge.service.infra.time import DAY_SECONDS, SECOND, instant, moment
from expunge.service.requests.states import Regulation, Status, extended, require_extendable
from expunge.service.requests.status import announce_requests
from expunge.service.requests.webhooks import WebhookEvent

NEAR_SECONDS = 7 * DAY_SECONDS
"""as the alert ExpungeDeadlineNear"""
WARNED_AT_ONCE = 500


def extend(session: Session, request: DeletionRequest) -> None:
    """Give the request the later deadline that its regulation allows. Raises RequestRefused.

    The reason is not stored: the controller gives it to the person, and nothing can be removed from the audit log.
    """
    session.refresh(request, with_for_update=True)
    at = recorded_at(session)
    require_extendable(Status(request.status), request.regulation, request.due_at, request.extended_at, at)
    later = extended(instant(request.received_at), Regulation(request.regulation or ""))
    request.first_due_at, request.extended_at = request.due_at, at
    request.due_at = None if later is None else moment(later)
    record(
        session,
        request.tenant_id,
        "request.extended",
        request_id=request.id,
        received_at=request.received_at,
        first_due_at=request.first_due_at,
        due_at=request.due_at,
    )
    session.flush()


def announce_due_soon(database: Database) -> int:
    """Announce the open requests whose deadline is near, once for each deadline; return how many. Raises Busy."""
    open_ones = DeletionRequest.status.in_((Status.QUEUED, Status.RUNNING, Status.BLOCKED))
    unwarned = or_(DeletionRequest.warned_due_at.is_(None), DeletionRequest.warned_due_at != DeletionRequest.due_at)
    with database.read() as session:
        near = DeletionRequest.due_at < now(session) + NEAR_SECONDS * SECOND
        found = session.scalars(select(DeletionRequest.id).where(open_ones, near, unwarned).limit(WARNED_AT_ONCE)).all()
    if not found:
        return 0
    with database.write() as session:
        rows = select(DeletionRequest).where(DeletionRequest.id.in_(found), open_ones, unwarned)
        requests = session.scalars(rows.order_by(DeletionRequest.id).with_for_update()).all()
        announce_requests(session, *((WebhookEvent.REQUEST_DUE_SOON, request) for request in requests))
        for request in requests:
            request.warned_due_at = request.due_at
        return len(requests)
