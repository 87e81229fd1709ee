"""Webhook endpoints, and what was sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, problems, require_scope
from expunge_service.api.http.etag import Decided, tagged
from expunge_service.api.http.pagination import Limit, Listed, MomentCursor, Page, after, after_page, place_of
from expunge_service.api.openapi import answer
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import RequestId
from expunge_service.api.views.webhooks import (
    DeliveryView,
    EndpointView,
    deliveries_before,
    delivery_view,
    endpoint_view,
    endpoints_of,
    find_endpoint,
    locked_delivery,
)
from expunge_service.requests import (
    ABOUT_REQUESTS,
    SUBSCRIBED,
    WebhookEvent,
    add_endpoint,
    disable_endpoint,
    replay_webhooks,
    send_test,
)

router = APIRouter(tags=["webhooks"])
Admin = Annotated[Caller, Depends(require_scope(Scope.MODELS_ADMIN))]
DeliveryId = Annotated[str, Path(pattern=r"^msg_[0-9a-f]{32}$")]
_PATH = "/v1/webhooks"


def _check_url(url: str, *, loopback: bool) -> None:
    """Check the form of the address; where it leads is checked at every delivery. Raises ApiProblem (422).

    ``loopback``: this machine's own addresses may be named, over plain http.
    """
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
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


def _check_kinds(kinds: Sequence[WebhookEvent], caller: Caller) -> None:
    """Check that the caller may read what the endpoint is to be sent. Raises ApiProblem (403)."""
    hidden = sorted(ABOUT_REQUESTS.intersection(kinds))
    if hidden and Scope.DELETIONS_READ not in caller.scopes:
        errors = [{"pointer": "/kinds", "detail": f"{', '.join(hidden)}: these need the scope deletions:read too."}]
        detail = "News of deletion requests is sent only to endpoints that a key with the scope deletions:read added."
        raise ApiProblem(403, "scope_missing", detail, errors)


class EndpointOrder(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"url": "https://hooks.example.com/expunge"}]}
    )

    url: Annotated[str, StringConstraints(max_length=2048, pattern=r"^https?://[\x21-\x7e]+$")]
    kinds: list[WebhookEvent] = Field(
        default_factory=lambda: [*SUBSCRIBED],
        min_length=1,
        max_length=20,
        fail_fast=True,
        description="left out: all. Those of deletion requests need the scope deletions:read too",
    )


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
        view = endpoint_view(service.session_key, endpoint).model_copy(update={"secret": secret})
    response.headers["Location"] = f"{_PATH}/{view.id}"
    return view


@router.get(_PATH, response_model=Listed[EndpointView], responses=problems(), summary="List endpoints")
def index(service: Running, caller: Admin) -> Listed[EndpointView]:
    with service.database.read() as session:
        found = endpoints_of(session, caller.tenant_id)
    return Listed(data=[endpoint_view(service.session_key, endpoint) for endpoint in found])


@router.get(
    _PATH + "/{endpoint_id}",
    response_model=EndpointView,
    responses=problems(404) | answer(200, "ETag"),
    summary="Show an endpoint and what was sent to it",
)
def show(
    *,
    endpoint_id: RequestId,
    request: Request,
    response: Response,
    service: Running,
    caller: Admin,
    cursor: MomentCursor = None,
    limit: Limit = 50,
) -> EndpointView:
    with service.database.read() as session:
        endpoint = find_endpoint(session, caller.tenant_id, endpoint_id)
        found = deliveries_before(session, endpoint, None if cursor is None else after(cursor), limit + 1)
    view = endpoint_view(service.session_key, endpoint)
    data = [delivery_view(delivery) for delivery in found[:limit]]
    view.deliveries = Page(data=data, **after_page(request, response, found, limit, place_of))
    return tagged(view, response)


@router.delete(
    _PATH + "/{endpoint_id}",
    response_model=EndpointView,
    responses=problems(404, 412) | answer(200, "ETag"),
    summary="Disable an endpoint",
)
def remove(endpoint_id: RequestId, service: Running, caller: Admin, state: Decided) -> EndpointView:
    with service.database.write() as session:
        endpoint = find_endpoint(session, caller.tenant_id, endpoint_id)
        state.require(endpoint_view(service.session_key, endpoint))
        disable_endpoint(session, endpoint)
        return state.changed(endpoint_view(service.session_key, endpoint))


@router.post(
    _PATH + "/{endpoint_id}/deliveries/{delivery_id}/replay",
    status_code=202,
    response_model=DeliveryView,
    responses=problems(404),
    summary="Send a delivery again, under the same id",
)
def send_again(endpoint_id: RequestId, delivery_id: DeliveryId, service: Running, caller: Admin) -> DeliveryView:
    with service.database.write() as session:
        endpoint = find_endpoint(session, caller.tenant_id, endpoint_id)
        delivery = locked_delivery(session, endpoint, delivery_id)
        replay_webhooks(session, endpoint, delivery)
        return delivery_view(delivery)


@router.post(
    _PATH + "/{endpoint_id}/test",
    status_code=202,
    response_model=DeliveryView,
    responses=problems(404, 409),
    summary="Send a test delivery to an endpoint",
)
def test(endpoint_id: RequestId, service: Running, caller: Admin) -> DeliveryView:
    with service.database.write() as session:
        endpoint = find_endpoint(session, caller.tenant_id, endpoint_id)
        if endpoint.disabled_at is not None:
            raise ApiProblem(409, "endpoint_disabled", "Nothing is sent to a disabled endpoint. Add it again.")
        return delivery_view(send_test(session, endpoint))
