"""``/console/requests/{id}``: one request, what happened to it, and what can be done about it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.access import Scope, TwoPersonAct, consented
from expunge_service.api.types import RequestId
from expunge_service.api.views.history import certificate_of, phases, timeline
from expunge_service.api.views.log import taken_in_by
from expunge_service.api.views.requests import DeletionRequestView, changes_soon, find_request, request_view
from expunge_service.console.acts import ACTS
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor
from expunge_service.console.ways import ways
from expunge_service.infra.db import now
from expunge_service.requests import RequestRefused, Status, awaits_decision, require_extendable

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/requests/{request_id}")
def show(request_id: RequestId, visit: Visitor) -> Response:
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = find_request(session, visit.caller.tenant_id, request_id)
        view = request_view(session, row, visit.caller.scopes)
        certificate = certificate_of(session, row)
        issued = certificate is not None and certificate.envelope is not None
        expected = view.status == Status.COMPLETED and any(part.version for part in view.models)
        cancellable = bool(view.cancellable) and not awaits_decision(view.status, view.reason)
        at = now(session)
        extendable = _may_extend(view, at) and visit.allows(ACTS["extend"].route)
        steps = [*view.actions, *(step for part in view.models for step in part.actions)]
        facts = {
            "request": view,
            "sender": taken_in_by(session, visit.caller.tenant_id, [row.id])[row.id],
            "timeline": timeline(session, row),
            "phases": phases(session, row),
            "certificate": issued,
            "awaited": expected and not issued,
            "ways": [way for way in ways(steps, visit.caller) if way.verb != "cancel" or cancellable],
            "agreed_by_one": view.status == Status.BLOCKED
            and consented(session, visit.caller.tenant_id, TwoPersonAct.VERIFY, row.id) is not None,
            "cancellable": cancellable and visit.allows(ACTS["cancel"].route),
            "extendable": extendable,
            "busy": changes_soon(view, at) or (expected and not issued),
        }
    return visit.page("request.html", **facts, acts=ACTS)


def _may_extend(view: DeletionRequestView, at: int) -> bool:
    try:
        require_extendable(view.status, view.regulation, view.due_at, view.extended_at, at)
    except RequestRefused:
        return False
    return True
