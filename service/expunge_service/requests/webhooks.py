"""Webhooks by Standard Webhooks 1.0: endpoints, the outbox, and signatures.

News is written into the outbox in the transaction that makes it, one row for each endpoint; the row's id is the
``webhook-id`` and stays the same over all attempts to deliver it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from expunge_service.audit import canonical, record, recorded_at
from expunge_service.infra.pseudonyms import mac, new_id
from expunge_service.infra.tables import Generation, Model, WebhookDelivery, WebhookEndpoint
from expunge_service.infra.time import HOUR_SECONDS, rfc_3339
from expunge_service.requests.reasons import Reason, actions
from unlearning.accounting.budget import would_overspend

BACKOFF_SECONDS = (15, 300, 1800, *(hours * HOUR_SECONDS for hours in (2, 5, 10, 14, 20, 24)))
"""from one attempt to the next: three days and a bit; the first is longer than an attempt may take"""
_ENDPOINTS = WebhookEndpoint.__table__.c
MAX_ATTEMPTS = len(BACKOFF_SECONDS) + 1


class DeliveryOutcome(StrEnum):
    """The result of an attempt to deliver."""

    DELIVERED = "delivered"
    REJECTED = "rejected"  # the receiver answered another status than 2xx
    REFUSED = "refused"  # webhooks may not be sent to this address; nothing was sent
    TIMED_OUT = "timed_out"
    NO_ANSWER = "no_answer"  # no such name, no connection, or it broke


class WebhookEvent(StrEnum):
    """The kinds of news. api/webhook_events.py describes what each one carries."""

    REQUEST_ACCEPTED = "deletion_request.accepted"
    REQUEST_VERIFIED = "deletion_request.verified"
    REQUEST_REJECTED = "deletion_request.rejected"
    REQUEST_BLOCKED = "deletion_request.blocked"
    REQUEST_CANCELLED = "deletion_request.cancelled"
    REQUEST_DUE_SOON = "deletion_request.due_soon"
    REQUEST_COMPLETED = "deletion_request.completed"
    CERTIFICATE_ISSUED = "certificate.issued"
    VERSION_PUBLISHED = "model_version.published"
    BUDGET_EXHAUSTED = "budget.exhausted"
    TEST = "webhook.test"


SUBSCRIBED: tuple[WebhookEvent, ...] = tuple(kind for kind in WebhookEvent if kind is not WebhookEvent.TEST)
"""what an endpoint gets that names no kinds; a test is sent to the one endpoint that it tests"""
ABOUT_REQUESTS = frozenset(
    kind for kind in WebhookEvent if kind.startswith("deletion_request.") or kind is WebhookEvent.CERTIFICATE_ISSUED
)
"""kinds that tell what became of requests: an endpoint for them takes the scope ``deletions:read``"""


def is_wanted(session: Session, tenant_id: str, news: WebhookEvent) -> bool:
    """Return whether an endpoint of the tenant asked for this kind of news."""
    return any(news in kinds for _, kinds in _endpoints(session, tenant_id))


def announce(session: Session, tenant_id: str, news: WebhookEvent, data: dict[str, Any]) -> None:
    """Put the news into the outbox of every endpoint of the tenant that wants it. ``data`` names no person."""
    at = recorded_at(session)
    rows = [
        _delivery(endpoint_id, news, data, at) for endpoint_id, kinds in _endpoints(session, tenant_id) if news in kinds
    ]
    if rows:
        session.execute(insert(WebhookDelivery), rows)


def send_test(session: Session, endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Put a test event into the outbox of one endpoint, and return it."""
    row = _delivery(endpoint.id, WebhookEvent.TEST, {"endpoint": endpoint.id}, recorded_at(session))
    delivery = WebhookDelivery(**row)
    session.add(delivery)
    session.flush()
    return delivery


def _delivery(endpoint_id: str, news: WebhookEvent, data: dict[str, Any], at: int) -> dict[str, Any]:
    return {
        "id": f"msg_{new_id()}",
        "endpoint_id": endpoint_id,
        "kind": news,
        "payload": canonical({"type": news, "timestamp": rfc_3339(at), "data": data}),
        "next_at": at,
        "created_at": at,
    }


def announce_exhaustion(session: Session, generation_id: int) -> None:
    """Announce that the budget does not pay for another update. Call it after each charge."""
    row = session.execute(
        select(Generation.tenant_id, Generation.spent, Generation.budget, Generation.budget_cost, Model.name)
        .join(Model, Model.id == Generation.model_id)
        .where(Generation.id == generation_id)
    ).one()
    if would_overspend(row.spent, row.budget, row.budget_cost):
        facts = {"model": row.name, "generation": generation_id, "spent": row.spent, "limit": row.budget}
        steps = actions(Reason.BUDGET_EXHAUSTED.steps, model=[row.name])
        announce(session, row.tenant_id, WebhookEvent.BUDGET_EXHAUSTED, facts | {"actions": steps})


def add_endpoint(
    session: Session, session_key: bytes, tenant_id: str, url: str, kinds: Sequence[WebhookEvent]
) -> tuple[WebhookEndpoint, str]:
    """Add an endpoint; return it with its secret (``whsec_...``), which is shown once."""
    endpoint = WebhookEndpoint(
        id=new_id(),
        tenant_id=tenant_id,
        url=url,
        kinds=sorted(kinds),
        created_at=recorded_at(session),
    )
    session.add(endpoint)
    record(session, tenant_id, "webhook.added", endpoint=endpoint.id, kinds=sorted(kinds))
    return endpoint, "whsec_" + base64.b64encode(_secret(session_key, endpoint)).decode()


def disable_endpoint(session: Session, endpoint: WebhookEndpoint) -> None:
    """Stop all deliveries to an endpoint. Idempotent."""
    if endpoint.disabled_at is None:
        endpoint.disabled_at = recorded_at(session)
        record(session, endpoint.tenant_id, "webhook.disabled", endpoint=endpoint.id)


def webhook_signature(
    session_key: bytes, endpoint: WebhookEndpoint, message_id: str, seconds: int, payload: str
) -> str:
    """Return the ``webhook-signature`` header over id, timestamp (seconds since 1970) and payload.

    v1 is HMAC-SHA-256 under the endpoint's secret; v1a is Ed25519 under a key that the receiver cannot sign with.
    """
    text = f"{message_id}.{seconds}.{payload}".encode()
    shared = base64.b64encode(hmac.new(_secret(session_key, endpoint), text, hashlib.sha256).digest()).decode()
    ours = base64.b64encode(_private_key(session_key, endpoint).sign(text)).decode()
    return f"v1,{shared} v1a,{ours}"


def webhook_key(session_key: bytes, endpoint: WebhookEndpoint) -> str:
    """Return what verifies the endpoint's v1a signatures: ``whpk_`` and the base64 of 32 bytes."""
    raw = _private_key(session_key, endpoint).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return "whpk_" + base64.b64encode(raw).decode()


def replay_webhooks(session: Session, endpoint: WebhookEndpoint, delivery: WebhookDelivery) -> None:
    """Send it again from now on, under the same id and with all attempts; those made before stay counted."""
    delivery.attempts_before = delivery.attempts
    delivery.delivered_at, delivery.next_at = None, recorded_at(session)
    record(session, endpoint.tenant_id, "webhook.replayed", endpoint=endpoint.id, delivery=delivery.id)


_ENABLED = select(_ENDPOINTS.id, _ENDPOINTS.kinds).where(
    _ENDPOINTS.tenant_id == bindparam("tenant"), _ENDPOINTS.disabled_at.is_(None)
)


def _endpoints(session: Session, tenant_id: str) -> list[tuple[str, list[str]]]:
    """Return the tenant's endpoints, read once in a transaction, because a batch settles thousands of requests."""
    known: dict[str, list[tuple[str, list[str]]]] = session.info.setdefault("webhook_endpoints", {})
    if tenant_id not in known:
        rows = session.execute(_ENABLED, {"tenant": tenant_id})
        known[tenant_id] = [(endpoint_id, list(kinds)) for endpoint_id, kinds in rows]
    return known[tenant_id]


def _secret(session_key: bytes, endpoint: WebhookEndpoint) -> bytes:
    """Derive the endpoint's secret: it is not stored, and a new session key gives every endpoint a new one."""
    return bytes.fromhex(mac(session_key, "webhook", f"secret {endpoint.id}"))


def _private_key(session_key: bytes, endpoint: WebhookEndpoint) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(mac(session_key, "webhook", f"ed25519 {endpoint.id}")))
