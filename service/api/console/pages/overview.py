"""``/``: what needs attention, the models, the queue, and which processes are alive."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from expunge.service.access.api_keys import Scope
from expunge.service.api.console import views
from expunge.service.api.console.render import PageRoute
from expunge.service.api.console.selection import ROWS
from expunge.service.api.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
def overview(visit: Visitor, after: Annotated[str, Query(max_length=63)] = "") -> Response:
    service, tenant = visit.service, visit.caller.tenant_id
    with service.database.read() as session:
        rows = views.model_rows(session, tenant, after) if visit.may(Scope.MODELS_READ) else []
        reads = visit.may(Scope.DELETIONS_READ)
        figures = views.figures(session, tenant) if reads else None
        facts = {
            "rows": rows[:ROWS],
            "more": rows[ROWS - 1].model.name if len(rows) > ROWS else None,
            "figures": figures,
            "lists": views.FIGURES,
            "latency": views.latency_plot(session, tenant) if reads else None,
            "queue": views.queue(session, tenant, visit.caller.scopes) if reads else [],
            "recent": views.recent(session, tenant) if reads else [],
            "deadlines": views.deadlines_plot(session, tenant) if reads else None,
            "processes": views.processes(session, service.limits.lease_seconds),
            "audit": views.log_state(session) if visit.may(Scope.AUDIT_READ) else None,
            "busy": views.is_busy(visit.caller, figures, rows),
        }
    return visit.page("overview.html", **facts)
