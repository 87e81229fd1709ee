"""``/console/...``: an address that no page has is answered with a page, so that the way back is a link."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge.service.api.console.render import PageRoute
from expunge.service.api.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/{rest:path}")
def missing(rest: str, visit: Visitor) -> Response:  # noqa: ARG001
    return visit.page("missing.html", status=404)
