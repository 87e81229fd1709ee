"""Verifying and rejecting requests that were taken in unverified."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from service.api.dependencies import Running, problems
from service.api.http.etag import IfMatch, changed, require
from service.api.openapi import answer
from service.api.routes.deletion_requests import ITEM, Decider, DeletionRequestView, find, views, windows_of
from service.api.routes.holds import Reason
from service.api.types import RequestId
from service.requests import identity_check

router = APIRouter(tags=["deletion requests"])


class Rejection(BaseModel):
    """Why the request is turned down, as the person was told. It is kept; it must not name anybody."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason


@router.post(
    ITEM + "/verify",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Go on with an unverified request",
)
def verify(
    request_id: RequestId, service: Running, caller: Decider, response: Response, if_match: IfMatch = None
) -> DeletionRequestView:
    with service.database.write() as session:
        row = find(session, caller.tenant_id, request_id)
        require(views(session, [row])[0], if_match)
        to_notify = identity_check.verify(session, row, windows_of(service))
        view = views(session, [row])[0]
    service.notify_one(to_notify)
    return changed(view, response)


@router.post(
    ITEM + "/reject",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Reject an unverified request",
)
def reject(
    *,
    request_id: RequestId,
    body: Rejection,
    service: Running,
    caller: Decider,
    response: Response,
    if_match: IfMatch = None,
) -> DeletionRequestView:
    with service.database.write() as session:
        row = find(session, caller.tenant_id, request_id)
        require(views(session, [row])[0], if_match)
        identity_check.reject(session, row, body.reason)
        return changed(views(session, [row])[0], response)
