"""Turning templates into answers: every page with the same headers, every error as a page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from starlette.routing import Match

from expunge_service.api.problems import ApiProblem, not_found
from expunge_service.console import plots, words
from expunge_service.console.forms import Fields, field, sent, typed
from expunge_service.console.places import places
from expunge_service.infra.db import Busy
from expunge_service.requests import RequestRefused

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
        "days": words.days,
        "moment": words.moment,
        "calendar_day": words.calendar_day,
        "machine_time": words.machine_time,
        "number": words.number,
        "measured": words.measured,
        "used_of": words.used_of,
        "happening": words.happening,
        "as_pair": words.as_pair,
        "arc": plots.arc,
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
                if "%00" in request.url.query:  # PostgreSQL takes a zero byte in no text
                    raise not_found("page")
                return await handle(request)
            except ApiProblem as problem:
                if problem.status == HTTPStatus.UNAUTHORIZED:
                    return login_page(401)
                return await _error(request, problem.status, problem.detail)
            except RequestRefused as refused:
                return await _error(request, refused.status, str(refused))
            except Busy:
                return await _error(request, 503, "The database is busy or unreachable. Try again in a moment.")
            except RequestValidationError:
                return await _error(request, 404, "There is no such page.")

        return answer


async def _error(request: Request, status: int, detail: str) -> HTMLResponse:
    """Return a page that says what happened. After a form it leads back, and has what was typed: browsers keep no
    input of our pages. The form keeps the token that it was sent with: one of another site does not get ours.
    """
    form = await _offered(request, status)
    facts = {"title": _TITLES.get(status, HTTPStatus(status).phrase), "detail": detail, "back": _page_of(request)}
    visit, path = getattr(request.state, "visit", None), request.url.path
    bar = {"navigation": places(path, visit.may), "token": visit.token} if visit else {"navigation": []}
    return page("error.html", status, **facts, **bar, here=path, sent_token=field(form, "token"), typed=typed(form))


async def _offered(request: Request, status: int) -> Fields:
    """Return the fields of a refused form that may be sent again; none where it may not.

    A form that was refused for its sender (403) is not offered again, nor are requests that were ticked in a list, nor
    more than 20 fields. The log-in form carries no token, and what was typed there is not shown.
    """
    if request.method != "POST" or status == HTTPStatus.FORBIDDEN:
        return {}
    try:
        fields = await sent(request)
    except ApiProblem:
        return {}
    wanted = "token" in fields and "action" not in fields and len(typed(fields)) <= _MOST_TYPED
    return fields if wanted else {}


def _page_of(request: Request) -> str:
    """Return the address of the page that has the form which was sent; empty where there is none."""
    path = request.url.path
    if hasattr(request.state, "back"):  # several pages have forms that are sent to one address
        return str(request.state.back)
    for place in (path, path.rpartition("/")[0]) if request.method == "POST" else ():
        scope = {**request.scope, "method": "GET", "path": place}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            return place
    return ""
