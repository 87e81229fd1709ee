"""``/console/models``: every model, a line each."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from expunge_service.access import Scope
from expunge_service.api.views.models import model_rows
from expunge_service.api.views.selection import ROWS
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/models")
def index(visit: Visitor, after: Annotated[str, Query(max_length=63)] = "") -> Response:
    visit.need(Scope.MODELS_READ)
    with visit.service.database.read() as session:
        rows = model_rows(session, visit.caller.tenant_id, after)
    busy = any(row.model.status == "preparing" for row in rows)
    more = rows[ROWS - 1].model.name if len(rows) > ROWS else None
    return visit.page("models.html", rows=rows[:ROWS], more=more, busy=busy)
