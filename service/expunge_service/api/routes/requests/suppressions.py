"""Lifting suppression entries: a person who was deleted may come back, in generations that begin afterwards."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from expunge_service.access import Caller, Scope, TwoPersonAct
from expunge_service.api.dependencies import Running, agreed, awaits_another, problems, require_scopes
from expunge_service.api.http.etag import Decided
from expunge_service.api.types import RequestId
from expunge_service.api.views.requests import Justification, deciding
from expunge_service.requests import lift_suppression, stands

router = APIRouter(tags=["suppressions"])
Decider = Annotated[Caller, Depends(require_scopes([Scope.DELETIONS_DECIDE], [Scope.DELETIONS_READ]))]


class LiftedView(BaseModel):
    request: str
    lifted: int = Field(description="suppression entries that were in force until now")
    others: int = Field(description="other requests that still keep out the same person or samples")


@router.post(
    "/v1/deletion-requests/{request_id}/lift",
    response_model=LiftedView,
    responses=problems(404, 409, 412),
    summary="Lift the request's suppression entries, for new generations only",
)
def create(request_id: RequestId, body: Justification, service: Running, caller: Decider, state: Decided) -> LiftedView:
    with deciding(service.database, request_id, caller, state) as (session, request):
        may = not stands(session, request) or agreed(service, session, caller, TwoPersonAct.LIFT, request.id)
        if may:
            lifted, others = lift_suppression(session, request, body.reason)
            return LiftedView(request=request.id, lifted=lifted, others=others)
    raise awaits_another(TwoPersonAct.LIFT)
