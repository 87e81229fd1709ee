"""OpenDSR 2.0 under ``/opendsr``: a separate application, because its errors and its signature are OpenDSR's.

It is there where ``EXPUNGE_OPENDSR_URL`` is set. Its calls need an API key, as everywhere; discovery and the
certificate are public. docs/opendsr.md says what of it was compared with the specification.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from sqlalchemy.exc import IntegrityError
from starlette.exceptions import HTTPException

from expunge.service.access.api_keys import Caller, Scope
from expunge.service.api.dependencies import Running, Service, holding, holding_all
from expunge.service.api.problems import ApiProblem, not_found, problem_of
from expunge.service.api.routes.requests.deletion_requests import windows_of
from expunge.service.audit.log import recorded_at
from expunge.service.connect.opendsr.orders import API_VERSION, ERASURE, RAW, UUID, SubjectRequest, read
from expunge.service.connect.opendsr.processor import Processor
from expunge.service.connect.opendsr.requests import Received, find, receive, state_of
from expunge.service.infra.db import Busy
from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.time import rfc_3339
from expunge.service.infra.tracing import NO_TELEMETRY
from expunge.service.requests.cancel import cancel
from expunge.service.requests.states import RequestRefused

router = APIRouter()
Applicant = Annotated[Caller, Depends(holding(Scope.DELETIONS_WRITE))]
Reader = Annotated[Caller, Depends(holding(Scope.DELETIONS_READ))]
Decider = Annotated[Caller, Depends(holding_all(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ))]
SubjectRequestId = Annotated[str, Path(pattern=UUID)]
REQUESTS = ("/requests", "/opendsr_requests")
"""one collection under the two names that implementations give it"""


def mount(service: Service, processor: Processor) -> FastAPI:
    """Return the application to mount."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY, redirect_slashes=False)
    app.state.service, app.state.processor = service, processor
    for kind in (ApiProblem, RequestRefused, Busy, HTTPException):
        app.add_exception_handler(kind, _error)
    for path in REQUESTS:
        app.post(path)(create)
        app.get(path + "/{subject_request_id}")(show)
        app.delete(path + "/{subject_request_id}")(withdraw)
    app.include_router(router)
    return app


async def _processor(request: Request) -> Processor:
    processor: Processor = request.app.state.processor
    return processor


async def _sent(request: Request) -> bytes:
    return await request.body()


Signing = Annotated[Processor, Depends(_processor)]
Body = Annotated[bytes, Depends(_sent)]


@router.get("/discovery")
def discover(processor: Signing) -> Response:
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


@router.get("/certificate.pem")
def certificate(processor: Signing) -> Response:
    return Response(processor.certificate, media_type="application/x-pem-file")


def create(service: Running, caller: Applicant, processor: Signing, body: Body) -> Response:
    sent = read(body, processor)
    if sent.status_callback_urls and Scope.DELETIONS_READ not in caller.scopes:
        detail = "Callbacks tell what became of a request: they need a key with the scope deletions:read too."
        raise ApiProblem(403, "scope_missing", detail)
    crash_point("api-before-transaction")
    try:
        received = _receive(service, caller, sent)
    except IntegrityError:  # another call with the same id was first: this one finds what it wrote
        received = _receive(service, caller, sent)
    crash_point("api-after-commit")
    service.notify(received.to_notify)
    said = state_of(received.request, sent.subject_request_id)
    shown = {name: said[name] for name in ("controller_id", "expected_completion_time", "subject_request_id")}
    return _answer(processor, 201, shown | _receipt(rfc_3339(received.request.created_at), body))


def show(subject_request_id: SubjectRequestId, service: Running, caller: Reader, processor: Signing) -> Response:
    with service.database.read() as session:
        request = find(session, caller.tenant_id, subject_request_id)
        if request is None:
            raise not_found("request")
        return _answer(processor, 200, state_of(request, subject_request_id))


def withdraw(
    *, subject_request_id: SubjectRequestId, service: Running, caller: Decider, processor: Signing, body: Body
) -> Response:
    with service.database.write() as session:
        request = find(session, caller.tenant_id, subject_request_id)
        if request is None:
            raise not_found("request")
        cancel(session, request)
        said = state_of(request, subject_request_id)
        at = rfc_3339(recorded_at(session))
    shown = {name: said[name] for name in ("api_version", "controller_id", "subject_request_id")}
    return _answer(processor, 202, shown | _receipt(at, body))


def _receive(service: Service, caller: Caller, sent: SubjectRequest) -> Received:
    with service.database.write(crash="api-inside-commit") as session:
        return receive(session, service.pepper, caller.tenant_id, sent, windows_of(service))


def _receipt(at: str, body: bytes) -> dict[str, str]:
    """Return when a call was received, and the bytes that were: they are signed with the answer, and not stored."""
    return {"received_time": at, "encoded_request": base64.b64encode(body).decode()}


def _answer(processor: Processor, status: int, said: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(said, separators=(",", ":")).encode()
    made = (headers or {}) | processor.headers(body)
    return Response(body, status, made, media_type="application/json")


async def _error(request: Request, error: Exception) -> Response:
    """Answer an error in OpenDSR's form. It repeats nothing that the client sent."""
    problem = _problem(error)
    status = 400 if problem.status == 422 else problem.status
    faults = [
        {"domain": "Validation", "reason": each.get("pointer", each.get("header", "")), "message": each["detail"]}
        for each in problem.errors
    ]
    said = {"code": status, "message": problem.detail, "errors": faults}
    return _answer(request.app.state.processor, status, {"error": said}, dict(problem.headers))


def _problem(error: Exception) -> ApiProblem:
    if isinstance(error, ApiProblem):
        return error
    if isinstance(error, RequestRefused):
        return problem_of(error)
    if isinstance(error, HTTPException):
        return ApiProblem(
            error.status_code, "http", "There is nothing at this address.", headers=dict(error.headers or {})
        )
    return ApiProblem(503, "busy", "The database is busy. Repeat the call.", headers={"Retry-After": "1"})
