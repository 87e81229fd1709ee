"""Legal holds: placing, listing and lifting them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from expunge_service import requests
from expunge_service.access import Caller, Scope, TwoPersonAct, searched
from expunge_service.api.dependencies import (
    Running,
    agreed,
    awaits_another,
    count_search,
    problems,
    reading,
    require_scope,
)
from expunge_service.api.http.etag import Decided, IfNoneMatch, shown, tagged
from expunge_service.api.http.pagination import Limit, MomentCursor, Page, after, after_page, place_of
from expunge_service.api.openapi import answer
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import FreeText, PersonalId, RequestId, one_of
from expunge_service.api.views.holds import HoldView, find_hold, hold_view, holds_before
from expunge_service.requests import (
    Keeps,
    Reason,
    forgotten_already,
    keeps,
    place_hold,
    question_about_hold,
)

router = APIRouter(tags=["holds"])
Decider = Annotated[Caller, Depends(require_scope(Scope.DELETIONS_DECIDE))]
_PATH = "/v1/holds"
NOTES = {
    Keeps.SAMPLES: None,
    Keeps.HELD_OUT: "This hold protects nothing now: the person is only in a holdout, which deletions leave as it is.",
    Keeps.MAYBE: "No model knows this id yet. One is being prepared; its samples are not known. Compare the spelling.",
    Keeps.NOTHING: "No model knows this id: the hold protects nothing now. Compare the spelling; if it is wrong, lift "
    "the hold and place another.",
}
"""what is said of a hold that is placed; None: it keeps samples"""
NOT_SEARCHED = "Whether any model knows this id was not looked up: that takes a key with the scope people:search."


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
    confirmed: StrictBool = Field(
        default=False,
        description="the id is right as it is written, although no model knows it and it looks misspelled",
    )

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
    """Place a hold; with `people:search` its `note` says at once where no model knows the id.

    Without that scope a hold on an id that is unknown, or was deleted, is accepted, and has no effect.

    Where no model knows the id and it looks misspelled, the answer is 409 `near_miss`: a hold that misses its person
    lets the data be deleted. Correct the id, or send `confirmed`.
    """
    named = {"subject_id": body.subject_id, "sample_id": body.sample_id}
    may_see = Scope.PEOPLE_SEARCH in caller.scopes
    if body.subject_id is not None and not body.confirmed:
        count_search(service, caller)
        _require_right_spelling(service, caller, body.subject_id)
    elif may_see:
        count_search(service, caller)
    note: str | None = NOT_SEARCHED
    with service.database.write() as session:
        updates = forgotten_already(session, service.pepper, caller.tenant_id, **named) if may_see else []
        if may_see:  # a hold that is placed without a note tells that the person is known
            searched(session, caller)
        if not updates:
            hold = place_hold(session, service.pepper, caller.tenant_id, **named, reason=body.reason)
            session.flush()
            note = NOTES[keeps(session, hold)] if may_see else note
            view = hold_view(hold)
    if updates:
        where = ", ".join(f"version {number} of {name}" for name, number in updates)
        raise ApiProblem(409, "already_forgotten", f"Forgotten already, in {where}; nothing can be held.")
    response.headers["Location"] = f"{_PATH}/{view.id}"
    return tagged(view, response).model_copy(update={"note": note})


def _require_right_spelling(service: Running, caller: Caller, subject_id: str) -> None:
    """Raise ApiProblem where no model knows the id and it looks misspelled. The look is in the log all the same.

    So it is where somebody with nearly the id is to be deleted.
    """
    with service.database.write() as session:
        question = question_about_hold(session, service.pepper, caller.tenant_id, subject_id)
        if question is None:
            return
        searched(session, caller)
    why = Reason.NEAR_MISS.says(question.facts, caller.scopes)
    raise ApiProblem(409, "near_miss", f"{why} No hold was placed: correct the id, or send confirmed.")


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
def lift_hold(hold_id: RequestId, service: Running, caller: Decider, state: Decided) -> HoldView:
    with service.database.write() as session:
        hold = find_hold(session, caller.tenant_id, hold_id, lock=True)
        state.require(hold_view(hold))
        may = hold.lifted_at is not None or agreed(service, session, caller, TwoPersonAct.LIFT, hold.id)
        to_notify = requests.lift_hold(session, hold) if may else []
        view = hold_view(hold)
    if not may:
        raise awaits_another(TwoPersonAct.LIFT)
    service.notify(to_notify)
    return state.changed(view)
