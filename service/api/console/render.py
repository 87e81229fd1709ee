"""Turning templates into answers: every page with the same headers, every error as a page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from starlette.routing import Match

from service.api.console import words
from service.api.problems import ApiProblem
from service.infra.db import Busy
from service.requests.states import RequestRefused

if TYPE_CHECKING:
    from jinja2 import Environment

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_MOST_TYPED = 20
_TITLES: dict[int, str] = {
    HTTPStatus.FORBIDDEN: "Not allowed",
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.CONFLICT: "Not possible now",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Something is missing or wrong",
    HTTPStatus.TOO_MANY_REQUESTS: "Too often",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not possible now",
}


@cache
def _templates() -> Environment:
    """Load the templates for the first page, not at the start: Jinja's lexer takes a tenth of the API's start."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "span": words.span,
        "moment": words.moment,
        "machine_time": words.machine_time,
        "number": words.number,
        "happening": words.happening,
        "as_pair": words.as_pair,
    }
    return environment


def page(template: str, status: int = 200, **facts: Any) -> HTMLResponse:
    return HTMLResponse(_templates().get_template(template).render(**facts), status, HEADERS)


def login_page(status: int = 200, fault: str = "") -> HTMLResponse:
    answer = page("login.html", status, fault=fault)
    answer.headers["Referrer-Policy"] = "same-origin"  # else browsers send its form with the origin "null"
    return answer


class PageRoute(APIRoute):
    """A route whose errors are pages for people."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except ApiProblem as problem:
                if problem.status == HTTPStatus.UNAUTHORIZED:
                    return login_page(401)
                return _error(problem.status, problem.detail, **await _typed(request, problem.status))
            except RequestRefused as refused:
                return _error(refused.status, str(refused), **await _typed(request, refused.status))
            except Busy:
                return _error(503, "The database is busy or unreachable. Try again in a moment.")
            except RequestValidationError:
                return _error(404, "There is no such page.")

        return answer


def _error(status: int, detail: str, **typed: Any) -> HTMLResponse:
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    return page("error.html", status, title=title, detail=detail, **{"typed": [], "back": ""} | typed)


async def _typed(request: Request, status: int) -> dict[str, Any]:
    """Return the page of a refused form, and what was typed there: browsers keep nothing of our pages.

    A form that was refused for who sent it (403) is not offered again, nor are requests that were ticked in a list, nor
    more than 20 fields. The log-in form carries no token, and what was typed there is shown to nobody.
    """
    if request.method != "POST":
        return {}
    path = request.url.path
    places = [place for place in (path, path.rpartition("/")[0]) if _is_page(request, place)]
    facts: dict[str, Any] = {"back": next(iter(places), "")}
    fields = parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    typed = [(name, value) for name, value in fields if name not in ("token", "sure")]
    names = {name for name, _ in fields}
    if status == HTTPStatus.FORBIDDEN or "token" not in names or "action" in names or len(typed) > _MOST_TYPED:
        return facts
    return facts | {"typed": typed, "token": dict(fields)["token"], "here": path}


def _is_page(request: Request, path: str) -> bool:
    scope = {**request.scope, "method": "GET", "path": path}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
