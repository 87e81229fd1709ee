"""``/console/requests/{id}/decide``: one question about a request, what is known, and the answers."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.access import Scope, TwoPersonAct, consented
from expunge_service.api.dependencies import require_scopes_of
from expunge_service.api.types import RequestId
from expunge_service.api.views.log import taken_in_by
from expunge_service.api.views.requests import find_request, request_view
from expunge_service.console.acts import ACTS
from expunge_service.console.forms import Form, field
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import PageContext, Visitor
from expunge_service.requests import Reason, Status

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ANSWERS: dict[str | None, tuple[str, str]] = {
    Reason.UNVERIFIED: ("verify", "reject"),
    Reason.LARGE: ("approve", "cancel"),
    Reason.NEAR_MISS: ("same-person", "other-person"),
}
"""the acts that answer a reason's question"""


@router.get("/console/requests/{request_id}/decide")
def decide(request_id: RequestId, visit: Visitor) -> Response:
    return _question(request_id, visit, reason="")


@router.post("/console/requests/{request_id}/decide")
def change(request_id: RequestId, visit: Visitor, fields: Form) -> Response:
    """Ask again, with the reason that was typed: it is in the form, and in no address."""
    visit.check_token(fields)
    return _question(request_id, visit, reason=field(fields, "reason"))


def _question(request_id: RequestId, visit: PageContext, reason: str) -> Response:
    """Ask the question; lead back to the request where it waits for no decision."""
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = find_request(session, visit.caller.tenant_id, request_id)
        view = request_view(session, row, visit.caller.scopes)
        agreed = consented(session, visit.caller.tenant_id, TwoPersonAct.VERIFY, row.id) is not None
        sender = taken_in_by(session, visit.caller.tenant_id, [row.id])[row.id]
    if view.status != Status.BLOCKED or view.reason not in _ANSWERS:
        return visit.lead(f"/console/requests/{request_id}", "This request waits for no decision.")
    answers = _ANSWERS[view.reason]
    require_scopes_of(ACTS[answers[0]].route, visit.caller)
    offered = [name for name in answers if visit.allows(ACTS[name].route) and (name != "cancel" or view.cancellable)]
    facts = {
        "request": view,
        "sender": sender,
        "agreed_by_one": agreed,
        "answers": offered,
        "acts": ACTS,
        "reason": reason,
    }
    return visit.page("decision.html", question=ACTS[answers[0]].question, **facts)
