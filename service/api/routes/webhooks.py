"""Webhook endpoints, and what was sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import Caller, Scope
from expunge.service.api.dependencies import Running, Service, holding, problems, reading
from expunge.service.api.http.etag import IfMatch, IfNoneMatch, changed, require, shown
from expunge.service.api.http.pagination import Limit, Listed, MomentCursor, Page, after, link
from expunge.service.api.openapi import answer
from expunge.service.api.problems import ApiProblem, not_found
from expunge.service.api.types import Moment, RequestId
from expunge.service.infra.tables import WebhookDelivery, WebhookEndpoint
from expunge.service.requests.webhooks import (
    ABOUT_REQUESTS,
    MAX_ATTEMPTS,
    SUBSCRIBED,
    DeliveryOutcome,
    News,
    Protocol,
    add_endpoint,
    disable,
    public_key,
    replay,
    send_test,
)

router = APIRouter(tags=["webhooks"])
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]
DeliveryId = Annotated[str, Path(pattern=r"^msg_[0-9a-f]{32}$")]
_PATH = "/v1/webhooks"


def _check_url(url: str, *, loopback: bool) -> None:
    """Check the form of the address; where it leads is checked at every delivery. Raises ApiProblem (422).

    ``loopback``: this machine's own addresses may be named, over plain http.
    """
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and not parts.username and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not (parts.scheme == "https" or (loopback and _is_plain_and_local(parts))):
        errors = [{"pointer": "/url", "detail": "must be an https URL without credentials"}]
        raise ApiProblem(422, "invalid_url", "A webhook needs an https URL.", errors)


def _is_plain_and_local(parts: SplitResult) -> bool:
    if parts.scheme != "http":
        return False
    try:
        return parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _check_kinds(kinds: Sequence[News], caller: Caller) -> None:
    """Check that the caller may read what the endpoint is to be sent. Raises ApiProblem (403)."""
    hidden = sorted(ABOUT_REQUESTS.intersection(kinds))
    if hidden and Scope.DELETIONS_READ not in caller.scopes:
        errors = [{"pointer": "/kinds", "detail": f"{', '.join(hidden)}: these need the scope deletions:read too."}]
        detail = "News of deletion requests is sent only to endpoints that a key with the scope deletions:read added."
        raise ApiProblem(403, "scope_missing", detail, errors)


class EndpointOrder(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, StringConstraints(max_length=2048, pattern=r"^https?://[\x21-\x7e]+$")]
    kinds: list[News] = Field(
        default_factory=lambda: [*SUBSCRIBED],
        min_length=1,
        max_length=20,
        description="left out: all. Those of deletion requests need the scope deletions:read too",
    )


class EndpointView(BaseModel):
    id: str
    url: str
    kinds: list[News]
    protocol: Protocol = Field(description="opendsr: it gets status callbacks alone (docs/opendsr.md)")
    public_key: str = Field(description="whpk_...: verifies the v1a signatures")
    created_at: Moment
    disabled_at: Moment | None
    secret: str | None = Field(default=None, description="verifies signatures; shown once when the endpoint is added")


class DeliveryView(BaseModel):
    id: str = Field(description="the webhook-id header, the same over all attempts")
    kind: str
    state: Literal["pending", "delivered", "given_up"]
    attempts: int = Field(description="made so far, those before a replay included")
    last_outcome: DeliveryOutcome | None = Field(
        description="of the last attempt; null: none was made, or it is under way"
    )
    last_status: int | None = Field(description="that the receiver answered to it; null: it answered nothing")
    next_at: Moment
    delivered_at: Moment | None
    created_at: Moment


@router.post(
    _PATH,
    status_code=201,
    response_model=EndpointView,
    responses=problems() | answer(201, "Location", "Cache-Control"),
    summary="Add an endpoint",
)
def create(body: EndpointOrder, service: Running, caller: Admin, response: Response) -> EndpointView:
    _check_url(body.url, loopback=service.settings.loopback)
    _check_kinds(body.kinds, caller)
    with service.database.write() as session:
        endpoint, secret = add_endpoint(
            session, service.session_key, caller.tenant_id, body.url, sorted(set(body.kinds))
        )
        view = _view(service, endpoint).model_copy(update={"secret": secret})
    response.headers["Location"] = f"{_PATH}/{view.id}"
    response.headers["Cache-Control"] = "no-store"
    return view


@router.get(_PATH, response_model=Listed[EndpointView], responses=problems(), summary="List endpoints")
def index(service: Running, caller: Admin) -> Listed[EndpointView]:
    rows = select(WebhookEndpoint).where(WebhookEndpoint.tenant_id == caller.tenant_id)
    with service.database.read() as session:
        found = session.scalars(rows.order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)).all()
    return Listed(data=[_view(service, endpoint) for endpoint in found])


@router.get(_PATH + "/{endpoint_id}", response_model=EndpointView, responses=reading(404), summary="Show an endpoint")
def show(
    endpoint_id: RequestId, service: Running, caller: Admin, response: Response, if_none_match: IfNoneMatch = None
) -> EndpointView:
    with service.database.read() as session:
        return shown(_view(service, _find(session, caller.tenant_id, endpoint_id)), response, if_none_match)


@router.delete(
    _PATH + "/{endpoint_id}",
    response_model=EndpointView,
    responses=problems(404, 412) | answer(200, "ETag"),
    summary="Disable an endpoint",
)
def remove(
    endpoint_id: RequestId, service: Running, caller: Admin, response: Response, if_match: IfMatch = None
) -> EndpointView:
    with service.database.write() as session:
        endpoint = _find(session, caller.tenant_id, endpoint_id)
        require(_view(service, endpoint), if_match)
        disable(session, endpoint)
        return changed(_view(service, endpoint), response)


@router.get(
    _PATH + "/{endpoint_id}/deliveries",
    response_model=Page[DeliveryView],
    responses=problems(404),
    summary="Deliveries to an endpoint, newest first",
)
def deliveries(
    *,
    endpoint_id: RequestId,
    request: Request,
    response: Response,
    service: Running,
    caller: Admin,
    cursor: MomentCursor = None,
    limit: Limit = 50,
) -> Page[DeliveryView]:
    with service.database.read() as session:
        _find(session, caller.tenant_id, endpoint_id)
        rows = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
        if cursor is not None:
            place = tuple_(WebhookDelivery.created_at, WebhookDelivery.id)
            rows = rows.where(place < after(cursor))
        newest = rows.order_by(WebhookDelivery.created_at.desc(), WebhookDelivery.id.desc())
        found = session.scalars(newest.limit(limit + 1)).all()
    next_cursor = f"{found[limit - 1].created_at}.{found[limit - 1].id}" if len(found) > limit else None
    link(request, response, next_cursor)
    data = [_delivery(delivery) for delivery in found[:limit]]
    return Page(data=data, next_cursor=next_cursor, has_more=next_cursor is not None)


@router.post(
    _PATH + "/{endpoint_id}/deliveries/{delivery_id}/replay",
    status_code=202,
    response_model=DeliveryView,
    responses=problems(404),
    summary="Send a delivery again, under the same id",
)
def send_again(endpoint_id: RequestId, delivery_id: DeliveryId, service: Running, caller: Admin) -> DeliveryView:
    with service.database.write() as session:
        endpoint = _find(session, caller.tenant_id, endpoint_id)
        delivery = session.get(WebhookDelivery, delivery_id, with_for_update=True)
        if delivery is None or delivery.endpoint_id != endpoint.id:
            raise not_found("delivery")
        replay(session, endpoint, delivery)
        return _delivery(delivery)


@router.post(
    _PATH + "/{endpoint_id}/test",
    status_code=202,
    response_model=DeliveryView,
    responses=problems(404, 409),
    summary="Send a test delivery to an endpoint",
)
def test(endpoint_id: RequestId, service: Running, caller: Admin) -> DeliveryView:
    with service.database.write() as session:
        endpoint = _find(session, caller.tenant_id, endpoint_id)
        if endpoint.disabled_at is not None:
            raise ApiProblem(409, "endpoint_disabled", "Nothing is sent to a disabled endpoint. Add it again.")
        return _delivery(send_test(session, endpoint))


def _delivery(row: WebhookDelivery) -> DeliveryView:
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


def _find(session: Session, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    endpoint = session.get(WebhookEndpoint, endpoint_id)
    if endpoint is None or endpoint.tenant_id != tenant_id:
        raise not_found("webhook")
    return endpoint


def _view(service: Service, endpoint: WebhookEndpoint) -> EndpointView:
    return EndpointView(
        id=endpoint.id,
        url=endpoint.url,
        kinds=[News(kind) for kind in endpoint.kinds],
        protocol=Protocol(endpoint.protocol),
        public_key=public_key(service.session_key, endpoint),
        created_at=endpoint.created_at,
        disabled_at=endpoint.disabled_at,
    )
