"""``/``: the inbox. What needs this caller, most urgent first; what runs by itself; the models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from expunge_service.access import Scope
from expunge_service.api.views.consumers import consumer_rows, worst_first
from expunge_service.api.views.log import log_state
from expunge_service.api.views.models import model_rows
from expunge_service.api.views.overview import FIGURES, deadlines, figures, latency, recent, retrains
from expunge_service.api.views.processes import processes
from expunge_service.api.views.requests import DeletionRequestView, changes_soon, request_views
from expunge_service.api.views.selection import ROWS, page_of
from expunge_service.console import charts
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import PageContext, Visitor
from expunge_service.console.ways import NextStep, ways
from expunge_service.infra.db import now
from expunge_service.infra.time import HOUR_SECONDS
from expunge_service.requests import Status

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_BROKEN = ("refused", "exhausted")


@router.get("/")
def overview(visit: Visitor) -> Response:
    service, tenant = visit.service, visit.caller.tenant_id
    with service.database.read() as session:
        at = now(session)
        rows = model_rows(session, tenant) if visit.may(Scope.MODELS_READ) else []
        reads, operates = visit.may(Scope.DELETIONS_READ), visit.may(Scope.MODELS_ADMIN)
        counts = figures(session, tenant) if reads else None
        beats = processes(session, service.limits.lease_seconds)
        urgent = page_of(session, FIGURES["open"], tenant, at) if reads else []
        late = worst_first(consumer_rows(session, tenant)) if operates else []
        views = request_views(session, urgent, visit.caller.scopes)
        facts = {
            **_sorted(visit, views),
            "rows": rows[:ROWS],
            "more": rows[ROWS - 1].model.name if len(rows) > ROWS else None,
            "broken": [row for row in rows[:ROWS] if operates and row.model.status in _BROKEN],
            "preparing": [row for row in rows[:ROWS] if row.model.status == "preparing"],
            "retrains": retrains(session, tenant) if visit.may(Scope.MODELS_READ) else [],
            "consumers": [each for each in late if each.status != "current"][:ROWS],
            "figures": counts,
            "lists": FIGURES,
            "latency": charts.latency(latency(session, tenant, at)) if reads else None,
            "recent": recent(session, tenant) if reads else [],
            "deadlines": charts.deadlines(deadlines(session, tenant, at), counts.overdue, at) if counts else None,
            "processes": [each for each in beats if each.silent_seconds < HOUR_SECONDS][:ROWS],
            "audit": log_state(session) if visit.may(Scope.AUDIT_READ) else None,
            # an update or a preparation: they end without an event
            "busy": any(row.model.status == "preparing" for row in rows)
            or any(changes_soon(view, at) for view in views),
        }
    return visit.page("overview.html", **facts)


def _sorted(visit: PageContext, views: list[DeletionRequestView]) -> dict[str, list[Any]]:
    """Return open requests in three parts: what needs this caller, with the first step; what needs others; the rest."""
    needs: list[tuple[DeletionRequestView, NextStep]] = []
    others, runs = [], []
    for view in views:
        steps = ways([*view.actions, *(step for part in view.models for step in part.actions)], visit.caller)
        if view.status != Status.BLOCKED:
            runs.append(view)
        elif steps:
            needs.append((view, _decided_elsewhere(view.id, steps[0])))
        else:
            others.append(view)
    return {"needs": needs, "others": others, "runs": runs}


def _decided_elsewhere(request_id: str, step: NextStep) -> NextStep:
    """Return the step; an answer that is final is given on the page that has the request's facts, not in the inbox."""
    if step.verb not in ("verify", "approve"):
        return step
    return NextStep(step.verb, "Decide", f"/console/requests/{request_id}/decide", False, (), step.command)
