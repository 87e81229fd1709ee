"""Extending a deadline: once, before it has passed, and on record."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.audit.log import record, recorded_at
from service.infra.tables import DeletionRequest
from service.infra.time import instant, moment
from service.requests.states import Regulation, Status, extended, require_extendable


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
