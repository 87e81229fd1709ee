"""``/console/webhooks``: endpoints, what was sent to them, and sending it again."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.api.http.pagination import MomentCursor
from expunge_service.api.routes import webhooks
from expunge_service.api.types import RequestId
from expunge_service.console.forms import Form, field, filled
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor
from expunge_service.requests import WebhookEvent

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/webhooks")
def index(visit: Visitor) -> Response:
    return visit.page("webhooks.html", endpoints=visit.call(webhooks.index).data, kinds=list(WebhookEvent))


@router.post("/console/webhooks")
def create(visit: Visitor, fields: Form) -> Response:
    """Add an endpoint, and lead to the page that shows its secret once."""
    visit.check_form(fields)
    hint = "An endpoint needs an address that begins with https:// and at least one kind of news."
    order = filled(webhooks.EndpointOrder, hint, url=field(fields, "url"), kinds=fields.get("kind", []))
    made = visit.call(webhooks.create, body=order)
    return visit.lead_to_secret("secret of the endpoint", made.secret, "/console/webhooks")


@router.get("/console/webhooks/{endpoint_id}")
def show(endpoint_id: RequestId, visit: Visitor, cursor: MomentCursor = None) -> Response:
    endpoint = visit.call(webhooks.show, endpoint_id=endpoint_id, cursor=cursor)
    sent = endpoint.deliveries
    return visit.page("webhook.html", endpoint=endpoint, deliveries=sent.data, more=sent.next_cursor)
