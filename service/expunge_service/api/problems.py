"""Every error is an RFC 9457 problem, and none repeats what the client sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from itertools import takewhile
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from expunge_service.api.openapi import allowed, fields, members
from expunge_service.infra.db import Busy
from expunge_service.infra.logging import describe
from expunge_service.infra.migrate import RUN_MIGRATE, SchemaState, schema_state
from expunge_service.infra.pseudonyms import new_id
from expunge_service.requests import RequestRefused

log = logging.getLogger(__name__)
Error = dict[str, str]
MOST_ERRORS = 20
"""in one answer"""


class ApiProblem(Exception):
    """An answer that is an error. ``detail`` and ``errors`` are our own words, never the client's.

    Args:
        status: the HTTP status code.
        code: a stable name in snake_case that clients may test for.
        detail: what happened and what to do.
        errors: one entry for each faulty field: ``pointer`` or ``header`` or ``parameter``, and ``detail``.
        actions: the steps that do help, as a blocked request shows them.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[Error] = (),
        headers: Mapping[str, str] | None = None,
        *,
        actions: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(f"{status} {code}")
        self.actions = list(actions)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {
            "type": f"urn:expunge:problem:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": f"urn:expunge:occurrence:{new_id()}",
            "code": self.code,
            "errors": self.errors[:MOST_ERRORS],
        } | ({"actions": self.actions} if self.actions else {})

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers, media_type="application/problem+json")


def not_found(what: str) -> ApiProblem:
    """Return a 404. The answer is the same where the thing belongs to another tenant."""
    return ApiProblem(404, f"{what}_not_found", f"There is no such {what.replace('_', ' ')}.")


@contextmanager
def asking_store() -> Iterator[None]:
    """Raise ApiProblem (503) where the store does not answer what the block asks of it."""
    try:
        yield
    except OSError:
        detail = "The store of the checkpoints does not answer. Repeat the call; if this stays so, tell the operator."
        raise ApiProblem(503, "store_unavailable", detail, headers={"Retry-After": "5"}) from None


def install(app: FastAPI) -> None:
    """Answer every error of ours and of the framework as a problem."""
    handlers = {
        ApiProblem: _problem,
        Busy: _busy,
        RequestRefused: _request_refused,
        RequestValidationError: _invalid,
        HTTPException: _framework,
        DBAPIError: _unmigrated,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiProblem)  # noqa: S101 (for mypy)
    return error.response()


def _busy(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Busy)  # noqa: S101 (for mypy)
    detail = "The database is busy or unreachable. Repeat the call with the same Idempotency-Key."
    return ApiProblem(503, "busy", detail, headers={"Retry-After": str(error.retry_after_seconds)}).response()


def _unmigrated(request: Request, error: Exception) -> JSONResponse:
    """Return an answer that names the command which makes the missing table or column."""
    if schema_state(request.app.state.service.database) is not SchemaState.BEHIND:
        raise error
    return ApiProblem(503, "not_ready", RUN_MIGRATE).response()


def problem_of(error: RequestRefused) -> ApiProblem:
    """Return the problem that a refused deletion request is answered with."""
    headers = {} if error.retry_seconds is None else {"Retry-After": str(error.retry_seconds)}
    return ApiProblem(error.status, error.code, str(error), error.errors, headers, actions=error.actions)


def _request_refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestRefused)  # noqa: S101 (for mypy)
    return problem_of(error).response()


def _framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (for mypy)
    headers = dict(error.headers or {})
    if error.status_code == 304:
        return Response(status_code=304, headers=headers)
    if error.status_code == 405 and (methods := allowed(request.app, request.url.path)):
        headers["Allow"] = ", ".join(methods)  # the framework names the methods of the first route alone
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    unread = "The body cannot be read. Send it in UTF-8, with less nesting and shorter numbers."
    detail = unread if error.status_code == 400 else f"{phrase}."
    return ApiProblem(error.status_code, code, detail, headers=headers).response()


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 (for mypy)
    faults = error.errors()
    see = "see errors" if len(faults) <= MOST_ERRORS else f"see the first {MOST_ERRORS} of {len(faults)} errors"
    detail = f"The request does not have the form that this route expects; {see}."
    errors = [_fault(fault, request) for fault in faults[:MOST_ERRORS]]
    return ApiProblem(422, "invalid_request", detail, errors).response()


def _fault(fault: Mapping[str, Any], request: Request) -> Error:
    """Return where and why, without the value. A name that the client chose is a value too: only its parent is
    shown.
    """
    place, *path = tuple[Any, ...](fault["loc"] or ("body",))
    if place == "body":
        names = fields(request.app)
        path = list(takewhile(lambda part: isinstance(part, int) or part in names, path))
        path = path[:-1] if fault["type"] == "extra_forbidden" and len(path) == len(fault["loc"]) - 1 else path
    if fault["type"] == "json_invalid":
        return {"pointer": "", "detail": "The body is not valid JSON."}
    detail = str(fault["msg"])
    if fault["type"] == "extra_forbidden":
        known = members(request.app, request.method, request.url.path, path)
        detail = f"There is a field of another name. Fields that are allowed here: {', '.join(known)}."
    if place == "body":
        return {"pointer": "".join(f"/{part}" for part in path), "detail": detail}
    return {"header" if place == "header" else "parameter": str(path[0]) if path else "", "detail": detail}


class Unexpected:
    """The outermost layer: an unexpected exception becomes a 500, logged without any value it carried."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            log.error("unexpected error: %s", describe(error))
            if started or scope["type"] != "http":
                raise ConnectionAbortedError from None
            detail = "Something went wrong here. The occurrence is in our log."
            await ApiProblem(500, "internal_error", detail).response()(scope, receive, send)
