"""OpenDSR 2.0 as an application of its own in front of the service, which it calls with one API key.

Callers show a token of the connector; discovery and the certificate are public. docs/connectors.md says what of it was
compared with the specification.
"""

from __future__ import annotations

import base64
import json
import logging
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from expunge_client import Refused, Unreachable
from expunge_connect.opendsr.orders import API_VERSION, ERASURE, RAW, UUID, read
from expunge_connect.opendsr.processor import Processor
from expunge_connect.opendsr.requests import Intake, ask, find, receive, state_of

SubjectRequestId = Annotated[str, Path(pattern=UUID)]
REQUESTS = ("/requests", "/opendsr_requests")
"""one collection under the two names that implementations give it"""
MOST_BYTES = 1_048_576
log = logging.getLogger(__name__)
public = APIRouter()


def create_app(intake: Intake) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.intake = intake
    for kind in (Refused, Unreachable, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _error)
    calls = APIRouter(dependencies=[Depends(_known)])
    for path in REQUESTS:
        calls.post(path)(create)
        calls.get(path + "/{subject_request_id}")(show)
        calls.delete(path + "/{subject_request_id}")(withdraw)
    app.include_router(calls)
    app.include_router(public)
    return app


async def _intake(request: Request) -> Intake:
    intake: Intake = request.app.state.intake
    return intake


Running = Annotated[Intake, Depends(_intake)]


async def _known(request: Request, intake: Running) -> None:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not intake.processor.knows(token):
        raise Refused(401, "unauthorized", "Send a token of this connector as Authorization: Bearer TOKEN.", [])


async def _sent(request: Request) -> bytes:
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > MOST_BYTES:
            raise Refused(413, "too_large", f"A body has at most {MOST_BYTES} bytes.", [])
    return body


Body = Annotated[bytes, Depends(_sent)]


@public.get("/discovery")
def discover(intake: Running) -> Response:
    processor = intake.processor
    identities = [{"identity_type": each, "identity_format": RAW} for each in processor.identities]
    return _answer(
        processor,
        200,
        {
            "api_version": API_VERSION,
            "supported_identities": identities,
            "supported_subject_request_types": [ERASURE],
            "processor_certificate": f"{processor.url}/certificate.pem",
        },
    )


@public.get("/certificate.pem")
def certificate(intake: Running) -> Response:
    return Response(intake.processor.certificate, media_type="application/x-pem-file")


def create(intake: Running, body: Body) -> Response:
    sent = read(body, intake.processor)
    row = receive(intake, sent)
    shown = {
        "controller_id": intake.processor.controller,
        "expected_completion_time": row["due"],
        "subject_request_id": sent.subject_request_id,
    }
    return _answer(intake.processor, 201, shown | _receipt(row["received"], body))


def show(subject_request_id: SubjectRequestId, intake: Running) -> Response:
    row = find(intake, subject_request_id)
    request = None if row is None else ask(intake, row)
    if request is None:
        raise Refused(404, "not_found", "There is no such request.", [])
    return _answer(intake.processor, 200, state_of(intake.processor, request, subject_request_id))


def withdraw(*, subject_request_id: SubjectRequestId, intake: Running, body: Body) -> Response:
    row = find(intake, subject_request_id)
    if row is None or row["request"] is None:
        raise Refused(404, "not_found", "There is no such request.", [])
    said = state_of(intake.processor, intake.service.cancel(row["request"]), subject_request_id)
    shown = {name: said[name] for name in ("api_version", "controller_id", "subject_request_id")}
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return _answer(intake.processor, 202, shown | _receipt(at, body))


def _receipt(at: str, body: bytes) -> dict[str, str]:
    """Return when a call was received, and the bytes that were: they are signed with the answer, and not stored."""
    return {"received_time": at, "encoded_request": base64.b64encode(body).decode()}


def _answer(processor: Processor, status: int, said: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(said, separators=(",", ":")).encode()
    made = (headers or {}) | processor.headers(body)
    return Response(body, status, made, media_type="application/json")


async def _error(request: Request, error: Exception) -> Response:
    """Answer an error in OpenDSR's form. It repeats nothing that the client sent."""
    status, what, faults = _told(error)
    errors = [
        {"domain": "Validation", "reason": each.get("pointer", each.get("header", "")), "message": each["detail"]}
        for each in faults
    ]
    headers = {"Retry-After": "5"} if status == 503 else {}
    said = {"error": {"code": status, "message": what, "errors": errors}}
    return _answer(request.app.state.intake.processor, status, said, headers)


def _told(error: Exception) -> tuple[int, str, list[dict[str, str]]]:
    if isinstance(error, Refused) and (error.status not in (401, 403, 503) or error.code == "unauthorized"):
        return 400 if error.status == 422 else error.status, error.detail, error.errors
    if isinstance(error, Refused | Unreachable):
        log.error("the service did not take a call: %s", error if isinstance(error, Unreachable) else error.code)
        return 503, "The service takes no calls of this connector now. Repeat the call.", []
    if isinstance(error, HTTPException):
        return error.status_code, "There is nothing at this address.", []
    fault = {"pointer": "/subject_request_id", "detail": "It must be a UUID."}
    return 400, "The request is not one of OpenDSR 2.0; see errors.", [fault]
