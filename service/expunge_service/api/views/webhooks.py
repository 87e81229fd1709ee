"""Webhook endpoints and what was sent to them, for the API and the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, Field
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from expunge_service.api.http.pagination import Page
from expunge_service.api.problems import not_found
from expunge_service.api.types import Moment
from expunge_service.infra.tables import WebhookDelivery, WebhookEndpoint
from expunge_service.requests import MAX_ATTEMPTS, DeliveryOutcome, WebhookEvent, webhook_key


class DeliveryView(BaseModel):
    id: str = Field(description="the webhook-id header, the same over all attempts")
    kind: str
    state: Literal["pending", "delivered", "given_up"]
    attempts: int = Field(description="made so far, those before a replay included")
    last_outcome: DeliveryOutcome | None = Field(
        description="of the last attempt; null: none was made, or it is under way"
    )
    last_status: int | None = Field(description="that the receiver answered to it; null: no answer")
    next_at: Moment
    delivered_at: Moment | None
    created_at: Moment


class EndpointView(BaseModel):
    id: str
    url: str
    kinds: list[WebhookEvent]
    public_key: str = Field(description="whpk_...: verifies the v1a signatures")
    created_at: Moment
    disabled_at: Moment | None
    secret: str | None = Field(default=None, description="verifies signatures; shown once when the endpoint is added")
    deliveries: Page[DeliveryView] | None = Field(default=None, description="newest first; shown with one endpoint")

    UNTAGGED: ClassVar = {"deliveries"}


def endpoints_of(session: Session, tenant_id: str) -> Sequence[WebhookEndpoint]:
    rows = select(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id)
    return session.scalars(rows.order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)).all()


def deliveries_before(
    session: Session, endpoint: WebhookEndpoint, place: tuple[int, str] | None, limit: int
) -> Sequence[WebhookDelivery]:
    """Return what was sent to the endpoint, newest first, from what was made before ``place`` (moment, id)."""
    rows = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint.id)
    if place is not None:
        rows = rows.where(tuple_(WebhookDelivery.created_at, WebhookDelivery.id) < place)
    return session.scalars(
        rows.order_by(WebhookDelivery.created_at.desc(), WebhookDelivery.id.desc()).limit(limit)
    ).all()


def locked_delivery(session: Session, endpoint: WebhookEndpoint, delivery_id: str) -> WebhookDelivery:
    """Return a delivery to the endpoint, its row locked until the transaction ends. Raises ApiProblem (404)."""
    delivery = session.get(WebhookDelivery, delivery_id, with_for_update=True)
    if delivery is None or delivery.endpoint_id != endpoint.id:
        raise not_found("delivery")
    return delivery


def delivery_view(row: WebhookDelivery) -> DeliveryView:
    left = MAX_ATTEMPTS - (row.attempts - row.attempts_before)
    waiting: Literal["pending", "given_up"] = "pending" if left > 0 else "given_up"
    return DeliveryView(
        id=row.id,
        kind=row.kind,
        state=waiting if row.delivered_at is None else "delivered",
        attempts=row.attempts,
        last_outcome=None if row.last_outcome is None else DeliveryOutcome(row.last_outcome),
        last_status=row.last_status,
        next_at=row.next_at,
        delivered_at=row.delivered_at,
        created_at=row.created_at,
    )


def find_endpoint(session: Session, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    endpoint = session.get(WebhookEndpoint, endpoint_id)
    if endpoint is None or endpoint.tenant_id != tenant_id:
        raise not_found("webhook")
    return endpoint


def endpoint_view(session_key: bytes, endpoint: WebhookEndpoint) -> EndpointView:
    return EndpointView(
        id=endpoint.id,
        url=endpoint.url,
        kinds=[WebhookEvent(kind) for kind in endpoint.kinds],
        public_key=webhook_key(session_key, endpoint),
        created_at=endpoint.created_at,
        disabled_at=endpoint.disabled_at,
    )
