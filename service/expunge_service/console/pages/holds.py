"""``/console/holds``: legal holds; placing one, and lifting it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.api.http.pagination import MomentCursor
from expunge_service.api.routes.requests import holds
from expunge_service.console.forms import Form, field, filled
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/holds")
def index(visit: Visitor, cursor: MomentCursor = None) -> Response:
    found = visit.call(holds.index, cursor=cursor)
    return visit.page("holds.html", holds=found.data, more=found.next_cursor, places=visit.allows(holds.create))


@router.post("/console/holds")
def place(visit: Visitor, fields: Form) -> Response:
    """Place a hold. The person's id is in the form's body alone, and is not shown again."""
    hint = "A hold needs either a person's id or a sample's id, and a reason that names no person."
    names = ("subject_id", "sample_id", "reason")
    order = filled(holds.HoldOrder, hint, **{name: field(fields, name) for name in names})
    visit.check_form(fields)
    made = visit.call(holds.create, body=order)
    placed = "The hold is placed."
    return visit.lead("/console/holds", f"{placed} {made.note or 'Deletions that it touches are blocked.'}")
