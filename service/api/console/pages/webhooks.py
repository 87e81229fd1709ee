"""``/console/webhooks``: endpoints, what was sent to them, and sending it again."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge.service.api.console.forms import Form, field, filled
from expunge.service.api.console.render import PageRoute
from expunge.service.api.console.visit import PageAction, Visitor
from expunge.service.api.http.pagination import MomentCursor
from expunge.service.api.routes import webhooks
from expunge.service.api.types import RequestId
from expunge.service.requests.webhooks import News

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_DISABLE = PageAction(
    "Disable the endpoint",
    webhooks.remove,
    "Disabled. Nothing more is sent to this endpoint.",
    "Nothing more is sent to this endpoint, what waits included. It cannot be enabled again: add it a second time.",
)
_AGAIN = PageAction("Send again", webhooks.send_again, "It is sent again within seconds, under the same id.")
_TEST = PageAction(
    "Send a test", webhooks.test, "A test was made. It is sent within seconds; the list below says what came of it."
)


@router.get("/console/webhooks")
def index(visit: Visitor) -> Response:
    return visit.page("webhooks.html", endpoints=visit.call(webhooks.index).data, kinds=list(News))


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
    endpoint = visit.call(webhooks.show, endpoint_id=endpoint_id)
    found = visit.call(webhooks.deliveries, endpoint_id=endpoint_id, cursor=cursor)
    return visit.page("webhook.html", endpoint=endpoint, deliveries=found.data, more=found.next_cursor)


@router.post("/console/webhooks/{endpoint_id}/disable")
def disable(endpoint_id: RequestId, visit: Visitor, fields: Form) -> Response:
    return visit.carry_out(_DISABLE, fields, "/console/webhooks", endpoint_id=endpoint_id)


@router.post("/console/webhooks/{endpoint_id}/deliveries/{delivery_id}/again")
def again(endpoint_id: RequestId, delivery_id: webhooks.DeliveryId, visit: Visitor, fields: Form) -> Response:
    place = f"/console/webhooks/{endpoint_id}"
    return visit.carry_out(_AGAIN, fields, place, endpoint_id=endpoint_id, delivery_id=delivery_id)


@router.post("/console/webhooks/{endpoint_id}/test")
def test(endpoint_id: RequestId, visit: Visitor, fields: Form) -> Response:
    return visit.carry_out(_TEST, fields, f"/console/webhooks/{endpoint_id}", endpoint_id=endpoint_id)
