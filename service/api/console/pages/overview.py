"""``/``: what needs attention, the models, the queue, and which processes are alive."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from expunge.service.access import Scope
from expunge.service.api.console import charts
from expunge.service.api.console.render import PageRoute
from expunge.service.api.console.visit import Visitor
from expunge.service.api.views.log import log_state
from expunge.service.api.views.models import model_rows
from expunge.service.api.views.overview import FIGURES, deadlines, figures, latency, recent
from expunge.service.api.views.processes import processes
from expunge.service.api.views.requests import request_views
from expunge.service.api.views.selection import ROWS, page_of
from expunge.service.infra.db import now
from expunge.service.infra.time import HOUR_SECONDS

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
def overview(visit: Visitor, after: Annotated[str, Query(max_length=63)] = "") -> Response:
    service, tenant, scopes = visit.service, visit.caller.tenant_id, visit.caller.scopes
    with service.database.read() as session:
        at = now(session)
        rows = model_rows(session, tenant, after) if visit.may(Scope.MODELS_READ) else []
        reads = visit.may(Scope.DELETIONS_READ)
        counts = figures(session, tenant) if reads else None
        beats = processes(session, service.limits.lease_seconds)
        facts = {
            "rows": rows[:ROWS],
            "more": rows[ROWS - 1].model.name if len(rows) > ROWS else None,
            "figures": counts,
            "lists": FIGURES,
            "latency": charts.latency(latency(session, tenant, at)) if reads else None,
            "queue": request_views(session, page_of(session, FIGURES["open"], tenant, at), scopes) if reads else [],
            "recent": recent(session, tenant) if reads else [],
            "deadlines": charts.deadlines(deadlines(session, tenant, at), counts.overdue, at) if counts else None,
            "processes": [each for each in beats if each.silent_seconds < HOUR_SECONDS][:ROWS],
            "audit": log_state(session) if visit.may(Scope.AUDIT_READ) else None,
            # an update or a preparation: they end without an event
            "busy": any(row.model.status == "preparing" for row in rows) or (counts and counts.open > counts.held),
        }
    return visit.page("overview.html", **facts)
