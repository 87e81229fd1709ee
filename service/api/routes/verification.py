"""Verifying and rejecting requests that were taken in unverified."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.api.dependencies import Running, problems
from service.api.http.etag import IfMatch, changed, require
from service.api.openapi import answer
from service.api.request_views import DeletionRequestView, Justification, views
from service.api.routes.deletion_requests import ITEM, Decider, find, windows_of
from service.api.types import RequestId
from service.requests import identity_check

router = APIRouter(tags=["deletion requests"])


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
    service.notify(to_notify)
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
    body: Justification,
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
