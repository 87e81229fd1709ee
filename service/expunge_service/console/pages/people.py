"""``/console/people``: did we delete this person? Every request and every model that knows them."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.access import Scope
from expunge_service.api.routes.requests.search import SearchOrder, search
from expunge_service.console.forms import Form, field, filled
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/people")
def ask(visit: Visitor) -> Response:
    visit.need(Scope.PEOPLE_SEARCH)
    return visit.page("people.html", found=None)


@router.post("/console/people")
def find(visit: Visitor, fields: Form) -> Response:
    """Show what is known. The id is in the form's body alone: no address, no log and no page has it."""
    visit.need(Scope.PEOPLE_SEARCH)
    visit.check_form(fields)
    order = filled(SearchOrder, "Give the person's id, at most 512 characters.", subject_id=field(fields, "subject_id"))
    return visit.page("people.html", found=visit.call(search, order=order))
