"""An address that no page has is answered with a page, so that the way back is a link."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from expunge_service.api.problems import ApiProblem
from expunge_service.console.render import PageRoute, login_page
from expunge_service.console.visit import Visitor, visiting
from expunge_service.infra.db import Busy

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/{rest:path}")
def missing(rest: str, visit: Visitor) -> Response:  # noqa: ARG001
    return visit.page("missing.html", status=404)


def install(app: FastAPI) -> None:
    """Answer a browser with that page also outside of ``/console``. A client of the API gets its problem as before."""
    as_problem = cast("Callable[[Request, Exception], Response]", app.exception_handlers[HTTPException])

    def unknown(request: Request, error: Exception) -> Response:
        path, wants = request.url.path, request.headers.get("accept", "")
        lost = isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND
        if not lost or request.method != "GET" or "text/html" not in wants or path.startswith("/v1/"):
            return as_problem(request, error)
        try:
            return visiting(request, request.app.state.service).page("missing.html", status=404)
        except ApiProblem:
            return login_page(401)
        except Busy:
            return as_problem(request, error)

    app.add_exception_handler(HTTPException, unknown)
