"""The certificate of erasure of a request."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, problems, require_scope
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import RequestId
from expunge_service.api.views.history import certificate_of
from expunge_service.api.views.requests import find_request
from expunge_service.requests import Status

router = APIRouter(tags=["certificates"])
Reader = Annotated[Caller, Depends(require_scope(Scope.DELETIONS_READ))]


class Signature(BaseModel):
    keyid: str
    sig: str


class EnvelopeView(BaseModel):
    """A DSSE envelope around an in-toto Statement v1."""

    payloadType: str
    payload: str
    signatures: list[Signature]


@router.get(
    "/v1/deletion-requests/{request_id}/certificate",
    response_model=EnvelopeView,
    responses=problems(404, 409),
    summary="Certificate of erasure (in-toto in DSSE)",
)
def show(request_id: RequestId, service: Running, caller: Reader) -> Any:
    with service.database.read() as session:
        request = find_request(session, caller.tenant_id, request_id)
        issued = certificate_of(session, request)
    if request.status != Status.COMPLETED:
        raise ApiProblem(409, "not_completed", "A certificate is issued when the request is completed.")
    if issued is None:
        raise ApiProblem(404, "no_certificate", "No version was published for this request: there is no certificate.")
    if issued.refused is not None and issued.envelope is None:
        detail = f"Nothing is signed. {issued.refused} The operator must find out who edited the database."
        raise ApiProblem(409, "certificate_refused", detail)
    if issued.envelope is None:
        detail = "The keys are being destroyed and the log is being signed. Ask again in a moment."
        raise ApiProblem(409, "certificate_pending", detail, headers={"Retry-After": "1"})
    return Response(issued.envelope, media_type="application/json")
