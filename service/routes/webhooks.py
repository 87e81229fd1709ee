"""Webhook endpoints, and what was sent to them."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from service.auth import Caller, Scope
from service.context import Running, holding, problems
from service.names import Moment, RequestId
from service.pages import Cursor, Limit, Page, decode, encode, link
from service.problems import not_found
from service.records import WebhookDelivery, WebhookEndpoint
from service.webhooks import News, add_endpoint, disable

router = APIRouter(tags=["webhooks"])
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]
_PATH = "/v1/webhooks"


def _https(url: str) -> str:
    """Where the name leads is checked at every delivery: names can be pointed elsewhere later."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme == "https" and bool(parts.hostname) and not parts.username and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("must be an https URL without credentials")
    return url


class EndpointOrder(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, StringConstraints(max_length=2048, pattern=r"^[\x21-\x7e]+$"), AfterValidator(_https)]
    kinds: list[News] = Field(default_factory=lambda: list(News), min_length=1, max_length=20)


class EndpointView(BaseModel):
    id: str
    url: str
    kinds: list[News]
    created_at: Moment
    disabled_at: Moment | None


class NewEndpointView(EndpointView):
    secret: str = Field(description="verifies signatures; shown once")


class EndpointsView(BaseModel):
    data: list[EndpointView]


class DeliveryView(BaseModel):
    id: str = Field(description="the webhook-id header, the same over all attempts")
    kind: str
    attempts: int
    last_status: int | None
    next_at: Moment
    delivered_at: Moment | None
    created_at: Moment


@router.post(
    _PATH, status_code=201, response_model=NewEndpointView, responses=problems(413, 415), summary="Add an endpoint"
)
def create(body: EndpointOrder, service: Running, caller: Admin, response: Response) -> NewEndpointView:
    with service.database.write() as session:
        endpoint, secret = add_endpoint(session, service.pepper, caller.tenant_id, body.url, sorted(set(body.kinds)))
        view = NewEndpointView(**dict(_view(endpoint)), secret=secret)
    response.headers["Location"] = f"{_PATH}/{view.id}"
    return view


@router.get(_PATH, response_model=EndpointsView, responses=problems(), summary="List endpoints")
def index(service: Running, caller: Admin) -> EndpointsView:
    rows = select(WebhookEndpoint).where(WebhookEndpoint.tenant_id == caller.tenant_id)
    with service.database.read() as session:
        found = session.scalars(rows.order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)).all()
    return EndpointsView(data=[_view(endpoint) for endpoint in found])


@router.delete(
    _PATH + "/{endpoint_id}", response_model=EndpointView, responses=problems(404), summary="Disable an endpoint"
)
def remove(endpoint_id: RequestId, service: Running, caller: Admin) -> EndpointView:
    with service.database.write() as session:
        endpoint = _find(session, caller.tenant_id, endpoint_id)
        disable(session, endpoint)
        return _view(endpoint)


@router.get(
    _PATH + "/{endpoint_id}/deliveries",
    response_model=Page[DeliveryView],
    responses=problems(400, 404),
    summary="Deliveries to an endpoint, newest first",
)
def deliveries(
    *,
    endpoint_id: RequestId,
    request: Request,
    response: Response,
    service: Running,
    caller: Admin,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[DeliveryView]:
    with service.database.read() as session:
        _find(session, caller.tenant_id, endpoint_id)
        rows = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
        if cursor is not None:
            place = tuple_(WebhookDelivery.created_at, WebhookDelivery.id)
            rows = rows.where(place < tuple(decode(cursor, int, str)))
        newest = rows.order_by(WebhookDelivery.created_at.desc(), WebhookDelivery.id.desc())
        found = session.scalars(newest.limit(limit + 1)).all()
    next_cursor = encode(found[limit - 1].created_at, found[limit - 1].id) if len(found) > limit else None
    link(request, response, next_cursor)
    data = [DeliveryView.model_validate(delivery, from_attributes=True) for delivery in found[:limit]]
    return Page(data=data, next_cursor=next_cursor, has_more=next_cursor is not None)


def _find(session: Session, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    endpoint = session.get(WebhookEndpoint, endpoint_id)
    if endpoint is None or endpoint.tenant_id != tenant_id:
        raise not_found("webhook")
    return endpoint


def _view(endpoint: WebhookEndpoint) -> EndpointView:
    return EndpointView(
        id=endpoint.id,
        url=endpoint.url,
        kinds=[News(kind) for kind in endpoint.kinds],
        created_at=endpoint.created_at,
        disabled_at=endpoint.disabled_at,
    )
