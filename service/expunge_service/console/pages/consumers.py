"""``/console/consumers``: consumers, the versions that they serve, and their last reports."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.access import Scope
from expunge_service.api.views.consumers import consumer_rows, worst_first
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/consumers")
def index(visit: Visitor) -> Response:
    visit.need(Scope.MODELS_READ)
    with visit.service.database.read() as session:
        rows = worst_first(consumer_rows(session, visit.caller.tenant_id))
    return visit.page("consumers.html", consumers=rows)
