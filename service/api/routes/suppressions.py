"""Lifting suppression entries: a person who was deleted may come back, in generations that begin afterwards."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from service.access.api_keys import Caller, Scope
from service.api.dependencies import Running, holding, problems
from service.api.http.etag import IfMatch, require
from service.api.problems import Problem
from service.api.request_views import Justification, views
from service.api.routes.deletion_requests import find
from service.api.types import RequestId
from service.requests.readmission import GenerationBeginning, StillOpen, lift

router = APIRouter(tags=["suppressions"])
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]


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
def create(
    request_id: RequestId, body: Justification, service: Running, caller: Admin, if_match: IfMatch = None
) -> LiftedView:
    with service.database.write() as session:
        request = find(session, caller.tenant_id, request_id)
        require(views(session, [request])[0], if_match)
        try:
            lifted = lift(session, request, body.reason)
        except StillOpen:
            raise Problem(409, "still_open", "The request is not ended. Cancel it, or let it complete first.") from None
        except GenerationBeginning:
            detail = "A model is being prepared or retrained. Lift the suppression entries when that is over."
            raise Problem(409, "generation_beginning", detail) from None
        return LiftedView(request=request.id, lifted=lifted.stones, others=lifted.others)
