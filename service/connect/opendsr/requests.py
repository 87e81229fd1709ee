"""Accept an OpenDSR request, find it again, and announce to its caller how far it is.

The deletion request is made by the one intake, in the transaction that notes the caller's id of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, insert, or_, select
from sqlalchemy.orm import Session

from expunge.service.audit.log import canonical, record, recorded_at
from expunge.service.connect.opendsr.orders import API_VERSION, SubjectRequest, order
from expunge.service.infra.db import Database
from expunge.service.infra.pseudonyms import Pepper, new_id
from expunge.service.infra.tables import DeletionRequest, OpendsrRequest, WebhookEndpoint
from expunge.service.infra.time import rfc_3339
from expunge.service.requests.intake import Windows, accept
from expunge.service.requests.states import RequestRefused, Status
from expunge.service.requests.webhooks import Protocol, enqueue

PENDING, IN_PROGRESS, COMPLETED, CANCELLED = "pending", "in_progress", "completed", "cancelled"
WORDS = {
    Status.QUEUED: PENDING,
    Status.BLOCKED: PENDING,
    Status.RUNNING: IN_PROGRESS,
    Status.COMPLETED: COMPLETED,
    Status.CANCELLED: CANCELLED,
    Status.REJECTED: CANCELLED,
}
"""OpenDSR's words for our statuses"""
_ENDED = (Status.COMPLETED, Status.CANCELLED, Status.REJECTED)
ANNOUNCED_AT_ONCE = 500
KIND = "opendsr.status"


@dataclass(frozen=True)
class Received:
    """A request that was accepted now or before."""

    request: DeletionRequest
    to_notify: tuple[str, ...] = ()
    """ids of the models whose workers are to be notified"""


def receive(session: Session, pepper: Pepper, tenant_id: str, sent: SubjectRequest, windows: Windows) -> Received:
    """Accept the request, or find it under the caller's id. The same id with another body is refused.

    Raises:
        RequestRefused: another body under the same id (409), or what intake refuses.
        IntegrityError: another transaction has just used the id. Repeat it: it finds what that one wrote.
    """
    known = session.get(OpendsrRequest, (tenant_id, sent.subject_request_id))
    if known is not None:
        if known.body_digest != sent.digest(pepper):
            what = "This subject_request_id was used with another body. Take a new one."
            raise RequestRefused(409, "subject_request_id_reused", what)
        return Received(session.get_one(DeletionRequest, known.request_id))
    accepted = accept(session, pepper, tenant_id, order(sent), windows)
    row = {
        "tenant_id": tenant_id,
        "subject_request_id": sent.subject_request_id,
        "request_id": accepted.request.id,
        "body_digest": sent.digest(pepper),
        "endpoints": [_endpoint(session, tenant_id, url) for url in sorted(set(sent.status_callback_urls))],
        "announced": PENDING if sent.status_callback_urls else None,
    }
    session.execute(insert(OpendsrRequest), row)
    return Received(accepted.request, accepted.to_notify)


def find(session: Session, tenant_id: str, subject_request_id: str) -> DeletionRequest | None:
    """Return the deletion request that the caller's request became; None: there is no such request."""
    row = session.get(OpendsrRequest, (tenant_id, subject_request_id.lower()))
    return None if row is None else session.get_one(DeletionRequest, row.request_id)


def state_of(request: DeletionRequest, subject_request_id: str) -> dict[str, Any]:
    """Return what OpenDSR says about a request's state. It names no person."""
    return {
        "api_version": API_VERSION,
        "controller_id": request.tenant_id,
        "expected_completion_time": None if request.due_at is None else rfc_3339(request.due_at),
        "subject_request_id": subject_request_id.lower(),
        "request_status": WORDS[Status(request.status)],
    }


def announce_statuses(database: Database) -> int:
    """Put a callback into the outbox for each request that has gone on since the last one; return how many.

    ``in_progress``, ``completed`` and ``cancelled`` are announced at most once each, and never a step back.
    Raises Busy.
    """
    with database.read() as session:
        if session.execute(_lagging().limit(1)).first() is None:
            return 0
    with database.write() as session:
        locked = _lagging().limit(ANNOUNCED_AT_ONCE).with_for_update(of=OpendsrRequest)
        rows = session.execute(locked).all()
        for row, request in rows:
            _announce(session, row, request)
        return len(rows)


def _lagging() -> Any:
    gone_on = or_(
        and_(OpendsrRequest.announced == PENDING, DeletionRequest.status.in_((Status.RUNNING, *_ENDED))),
        and_(OpendsrRequest.announced == IN_PROGRESS, DeletionRequest.status.in_(_ENDED)),
    )
    return (
        select(OpendsrRequest, DeletionRequest)
        .join(DeletionRequest, DeletionRequest.id == OpendsrRequest.request_id)
        .where(gone_on)
        .order_by(OpendsrRequest.tenant_id, OpendsrRequest.subject_request_id)
    )


def _announce(session: Session, row: OpendsrRequest, request: DeletionRequest) -> None:
    said = state_of(request, row.subject_request_id)
    for endpoint_id in row.endpoints:
        url = session.get_one(WebhookEndpoint, endpoint_id).url
        enqueue(session, endpoint_id, KIND, canonical(said | {"status_callback_url": url}))
    row.announced = said["request_status"]


def _endpoint(session: Session, tenant_id: str, url: str) -> str:
    """Return the id of the endpoint for callbacks to this address; add it where there is none that is enabled."""
    ours = select(WebhookEndpoint.id).where(
        WebhookEndpoint.tenant_id == tenant_id,
        WebhookEndpoint.url == url,
        WebhookEndpoint.protocol == Protocol.OPENDSR,
        WebhookEndpoint.disabled_at.is_(None),
    )
    found = session.scalars(ours.order_by(WebhookEndpoint.id)).first()
    if found is not None:
        return found
    endpoint_id = new_id()
    values = {"id": endpoint_id, "tenant_id": tenant_id, "url": url, "kinds": [], "protocol": Protocol.OPENDSR.value}
    session.execute(insert(WebhookEndpoint), values | {"created_at": recorded_at(session)})
    record(session, tenant_id, "webhook.added", endpoint=endpoint_id, kinds=[KIND])
    return endpoint_id
