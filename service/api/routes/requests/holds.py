"""Legal holds: placing, listing and lifting them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, model_validator

from expunge.service import requests
from expunge.service.access import Caller, Scope, TwoPersonAct, searched
from expunge.service.api.dependencies import (
    Running,
    agreed,
    awaits_another,
    count_search,
    problems,
    reading,
    require_scope,
)
from expunge.service.api.http.etag import IfMatch, IfNoneMatch, changed, require, shown
from expunge.service.api.http.pagination import Limit, MomentCursor, Page, after, after_page, place_of
from expunge.service.api.openapi import answer
from expunge.service.api.problems import ApiProblem
from expunge.service.api.types import FreeText, PersonalId, RequestId, one_of
from expunge.service.api.views.holds import HoldView, find_hold, hold_view, holds_before
from expunge.service.requests import forgotten_already, place_hold, protects_nothing

router = APIRouter(tags=["holds"])
Decider = Annotated[Caller, Depends(require_scope(Scope.DELETIONS_DECIDE))]
_PATH = "/v1/holds"
ONLY_HELD_OUT = "This hold protects nothing now: the person is only in a holdout, which deletions leave as it is."


class HoldOrder(BaseModel):
    """What must be kept: a subject's data, or one sample. The reason must not name a person."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=one_of(subject_id="string", sample_id="string")
        | {"examples": [{"subject_id": "person-7", "reason": "case 2026-114, until the court decides"}]},
    )

    subject_id: PersonalId | None = None
    sample_id: PersonalId | None = None
    reason: FreeText

    @model_validator(mode="after")
    def _one_kind(self) -> HoldOrder:
        if (self.subject_id is None) == (self.sample_id is None):
            raise ValueError("give either subject_id or sample_id")
        return self


@router.post(
    _PATH,
    status_code=201,
    response_model=HoldView,
    responses=problems(409) | answer(201, "Location", "ETag"),
    summary="Place a legal hold",
)
def create(body: HoldOrder, service: Running, caller: Decider, response: Response) -> HoldView:
    """Place a hold. Without `people:search` a hold on a person who was forgotten is accepted, and has no effect."""
    named = {"subject_id": body.subject_id, "sample_id": body.sample_id}
    may_see = Scope.PEOPLE_SEARCH in caller.scopes
    if may_see:
        count_search(service, caller)
    with service.database.write() as session:
        updates = forgotten_already(session, service.pepper, caller.tenant_id, **named) if may_see else []
        if updates:
            searched(session, caller)
        else:
            hold = place_hold(session, service.pepper, caller.tenant_id, **named, reason=body.reason)
            session.flush()
            idle = may_see and protects_nothing(session, hold)
            if idle:
                searched(session, caller)
            view = hold_view(hold)
    if updates:
        where = ", ".join(f"version {number} of {name}" for name, number in updates)
        raise ApiProblem(409, "already_forgotten", f"Forgotten already, in {where}; nothing can be held.")
    response.headers["Location"] = f"{_PATH}/{view.id}"
    return changed(view, response).model_copy(update={"note": ONLY_HELD_OUT if idle else None})


@router.get(_PATH, response_model=Page[HoldView], responses=problems(), summary="List holds, newest first")
def index(
    *,
    request: Request,
    response: Response,
    service: Running,
    caller: Decider,
    cursor: MomentCursor = None,
    limit: Limit = 50,
) -> Page[HoldView]:
    with service.database.read() as session:
        found = holds_before(session, caller.tenant_id, None if cursor is None else after(cursor), limit + 1)
    data = [hold_view(hold) for hold in found[:limit]]
    return Page(data=data, **after_page(request, response, found, limit, place_of))


@router.get(_PATH + "/{hold_id}", response_model=HoldView, responses=reading(404), summary="Show a hold")
def show(
    hold_id: RequestId, service: Running, caller: Decider, response: Response, if_none_match: IfNoneMatch = None
) -> HoldView:
    with service.database.read() as session:
        return shown(hold_view(find_hold(session, caller.tenant_id, hold_id)), response, if_none_match)


@router.delete(
    _PATH + "/{hold_id}",
    response_model=HoldView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Lift a hold",
)
def lift_hold(
    hold_id: RequestId, service: Running, caller: Decider, response: Response, if_match: IfMatch = None
) -> HoldView:
    with service.database.write() as session:
        hold = find_hold(session, caller.tenant_id, hold_id, lock=True)
        require(hold_view(hold), if_match)
        may = hold.lifted_at is not None or agreed(service, session, caller, TwoPersonAct.LIFT, hold.id)
        to_notify = requests.lift_hold(session, hold) if may else []
        view = hold_view(hold)
    if not may:
        raise awaits_another(TwoPersonAct.LIFT)
    service.notify(to_notify)
    return changed(view, response)
