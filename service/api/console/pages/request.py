"""``/console/requests/{id}``: one request, what happened to it, and what can be done about it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge.service.access.api_keys import Scope
from expunge.service.access.four_eyes import Act, consented
from expunge.service.api.console.forms import Fields, Form, field, filled
from expunge.service.api.console.render import PageRoute
from expunge.service.api.console.visit import PageAction, Visitor
from expunge.service.api.console.ways import ways
from expunge.service.api.problems import not_found
from expunge.service.api.routes.requests import deletion_requests
from expunge.service.api.types import RequestId
from expunge.service.api.views.history import certificate_of, phases, timeline, window_ends
from expunge.service.api.views.requests import DeletionRequestView, Justification, find_request, request_view
from expunge.service.infra.db import now
from expunge.service.requests.states import RequestRefused, Status, awaits_decision, require_extendable
from expunge.service.requests.suppression import never_verified, related

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ACTIONS = {
    "verify": PageAction(
        "Verify and go on",
        deletion_requests.verify,
        "Verified. The models that hold this person forget them now.",
        "You confirm that the request comes from the person it names. The models then forget this person. That cannot "
        "be undone.",
    ),
    "reject": PageAction(
        "Reject the request",
        deletion_requests.reject,
        "Rejected. The request has changed no model.",
        "The request ends and cannot be opened again. Tell the person why; the reason is kept and must name nobody.",
    ),
    "approve": PageAction(
        "Approve",
        deletion_requests.approve_large,
        "Approved. The request is in the queue.",
        "The request removes unusually many samples. The models forget them for ever once a worker has begun.",
    ),
    "retry": PageAction("Retry", deletion_requests.retry_request, "Retried. The request is in the queue again."),
    "cancel": PageAction(
        "Cancel the request",
        deletion_requests.withdraw,
        "Cancelled. The person stays in the models.",
        "The request ends, the person stays in the models, and a cancelled request cannot be opened again.",
    ),
    "extend": PageAction(
        "Extend the deadline",
        deletion_requests.prolong,
        "Extended. The new deadline is below.",
        "The law allows one extension, and wants the person to be informed of it and of its reasons within the first "
        "deadline. It is on record and cannot be taken back.",
    ),
}
"""what can be done about a request, by the last part of its address"""


@router.get("/console/requests/{request_id}")
def show(request_id: RequestId, visit: Visitor) -> Response:
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = find_request(session, visit.caller.tenant_id, request_id)
        view = request_view(session, row, visit.caller.scopes)
        certificate = certificate_of(session, row)
        issued = certificate is not None and certificate.envelope is not None
        expected = view.status == Status.COMPLETED and any(part.version for part in view.models)
        ends = window_ends(session, row)
        extendable = _may_extend(view, now(session)) and visit.allows(ACTIONS["extend"].route)
        steps = [*view.actions, *(step for part in view.models for step in part.actions)]
        facts = {
            "request": view,
            "timeline": timeline(session, row),
            "phases": phases(session, row),
            "certificate": issued,
            "awaited": expected and not issued,
            "window_ends": ends,
            "ways": [way for way in ways(steps, visit.caller) if way.verb != "cancel" or ends is not None],
            "undecided": awaits_decision(view.status, view.reason) and visit.allows(ACTIONS["verify"].route),
            "agreed_by_one": consented(session, visit.caller.tenant_id, Act.VERIFY, row.id) is not None,
            "cancellable": ends is not None and visit.allows(ACTIONS["cancel"].route),
            "extendable": extendable,
            "related": [] if never_verified(session, row) else related(session, row),
            "busy": view.status in (Status.QUEUED, Status.RUNNING) or (expected and not issued),
        }
    return visit.page("request.html", **facts, actions=ACTIONS)


@router.post("/console/requests/{request_id}/{name}")
def act(request_id: RequestId, name: str, visit: Visitor, fields: Form) -> Response:
    if name not in ACTIONS:
        raise not_found("page")
    visit.check_form(fields)
    arguments = {"request_id": request_id} | ({"body": _why(fields)} if name == "reject" else {})
    return visit.carry_out(ACTIONS[name], fields, f"/console/requests/{request_id}", **arguments)


def _why(fields: Fields) -> Justification:
    hint = "Say why, in 1 to 1,000 characters without control characters."
    why: Justification = filled(Justification, hint, reason=field(fields, "reason"))
    return why


def _may_extend(view: DeletionRequestView, at: int) -> bool:
    try:
        require_extendable(view.status, view.regulation, view.due_at, view.extended_at, at)
    except RequestRefused:
        return False
    return True
