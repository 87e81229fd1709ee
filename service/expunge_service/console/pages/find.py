"""``/console/find``: the one search box. A person is searched on a second step alone, which is logged and limited."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from expunge_service.api.views.hits import find
from expunge_service.console.forms import Form, field
from expunge_service.console.render import HEADERS, PageRoute
from expunge_service.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LONGEST = 512


@router.get("/console/find")
def ask(visit: Visitor) -> Response:
    return visit.page("find.html", text="", found=None)


@router.post("/console/find")
def look(visit: Visitor, fields: Form) -> Response:
    """Open what the text names. It is in the form's body alone: no address and no log has it."""
    visit.check_token(fields)
    text = field(fields, "text")[:_LONGEST]
    with visit.service.database.read() as session:
        found = find(session, visit.caller.tenant_id, text, visit.caller.scopes)
    if found.only is not None:
        return RedirectResponse(found.only, 303, HEADERS)
    return visit.page("find.html", text=text, found=found)
