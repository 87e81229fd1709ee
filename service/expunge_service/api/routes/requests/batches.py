"""Many requests in one call, and the rehearsal of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from expunge_service.access import Caller, Scope, searched
from expunge_service.api.dependencies import Running, count_search, problems, require_scope
from expunge_service.api.intake import Outcome, take_in, windows_of, with_opening
from expunge_service.api.problems import problem_of
from expunge_service.api.routes.requests.deletion_requests import (
    DeletionOrder,
    KeyHeader,
    check_length,
    key_use,
    ordered,
)
from expunge_service.api.routes.requests.search import near_of
from expunge_service.api.types import Moment
from expunge_service.api.views.rehearsal import RehearsedPart, rehearse
from expunge_service.api.views.requests import AcceptedView, ReceiptView, accepted_view
from expunge_service.certificates import PersonalLetter
from expunge_service.requests import RequestRefused, StoredAnswer

router = APIRouter(tags=["deletion requests"])
Writer = Annotated[Caller, Depends(require_scope(Scope.DELETIONS_WRITE))]
Seeker = Annotated[Caller, Depends(require_scope(Scope.PEOPLE_SEARCH))]
_BATCH = "/v1/deletion-requests/batch"


class BatchOrder(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"requests": [{"subject_id": "person-7"}, {"subject_id": "person-8"}]}]},
    )

    requests: list[DeletionOrder] = Field(min_length=1, max_length=1000, fail_fast=True)


class BatchItem(BaseModel):
    """What became of one item: 202 and the request, or the problem that kept it out."""

    index: int
    status: int
    request: AcceptedView | ReceiptView | None = None
    problem: dict[str, Any] | None = None


class BatchView(BaseModel):
    outcomes: list[BatchItem]


class CostView(BaseModel):
    """One model's part in a rehearsal."""

    model: str
    samples: int
    method: str
    guarantee: str
    budget_cost: int = Field(description="units of 1e-12 mu^2 of one update, however many requests it carries")
    updates_left: int | None = Field(description="after this request; null: no limit applies")
    retrain_due: bool
    repeats: float | None = Field(
        description="share of a training that one request repeats on average; null: its updates repeat none"
    )
    seconds: float | None = Field(description="that this takes, by the time of the training")
    version: int | None = Field(description="the next version's number; null: none is made before a decision")
    reason: str | None = Field(description="why the request would wait here, a code of docs/reasons.md")
    expected_at: Moment | None = Field(description="when it would be done here at the earliest; null: not known")


class LetterView(BaseModel):
    """The letter as it would read. ``[ ]`` is filled in by hand."""

    headline: str
    paragraphs: list[str]


class EstimateView(BaseModel):
    """A rehearsal: what the request would do if it were accepted next, and its letter. No data change."""

    search: str = Field(description="id of this search: the audit log's entry names it and the key, not the person")
    samples: int
    models: list[CostView]
    preparing: list[str] = Field(description="models with people not known yet")
    near: str | None = Field(
        default=None,
        description="the id looks misspelled, and a decision would come first: how many people have nearly the same; "
        "null: it does not, or the key lacks deletions:decide",
    )
    regulation: str | None
    due_at: Moment | None
    letter: LetterView | None = Field(
        description="where every update succeeds and none comes before; null: a decision comes first, or the key lacks "
        "deletions:read"
    )


@router.post(
    _BATCH,
    status_code=207,
    response_model=BatchView,
    responses=problems(400, 409),
    summary="Forget many people",
)
def create_batch(batch: BatchOrder, service: Running, caller: Writer, idempotency_key: KeyHeader = None) -> Response:
    """Accept many requests in one transaction. A malformed item refuses the whole call."""
    use = key_use(service, caller, idempotency_key, _BATCH, batch)
    for order in batch.requests:
        check_length(order, service.limits.sample_ids)
    taken = take_in(service, use, [ordered(service, order) for order in batch.requests], _answer)
    outcomes = [
        outcome
        if outcome["request"] is None
        else outcome | {"request": with_opening(service, caller, outcome["request"], taken.salts)}
        for outcome in taken.stored.answer["outcomes"]
    ]
    return JSONResponse({"outcomes": outcomes}, taken.stored.status)


@router.post(
    "/v1/deletion-requests/estimate",
    response_model=EstimateView,
    responses=problems(),
    summary="Rehearse a request: models, cost, time and letter",
)
def estimate_cost(order: DeletionOrder, service: Running, caller: Seeker) -> EstimateView:
    check_length(order, service.limits.sample_ids)
    asked = order.order(service.settings.regulation, service.settings.time_zone)
    ids = len(asked.subjects or set(asked.sample_ids or ()))
    count_search(service, caller, ids)
    with service.database.write() as session:
        found = rehearse(session, service.pepper, caller.tenant_id, asked, windows_of(service))
        search = searched(session, caller, ids)
    reads = Scope.DELETIONS_READ in caller.scopes
    return EstimateView(
        search=search,
        samples=sum(part.cost.samples for part in found.parts),
        models=[_cost_view(part, reads) for part in found.parts],
        preparing=list(found.preparing),
        near=near_of(found.question, caller),
        regulation=found.request.regulation,
        due_at=found.request.due_at,
        letter=_letter_view(found.letter) if reads and found.letter is not None else None,
    )


def _cost_view(part: RehearsedPart, reads: bool) -> CostView:
    """Show a part. ``reads``: the caller may see what becomes of requests."""
    cost = {name: value for name, value in vars(part.cost).items() if name != "positions"}
    fate = {"version": part.version, "reason": part.reason, "expected_at": part.expected_at}
    return CostView(**cost, samples=part.cost.samples, **(fate if reads else dict.fromkeys(fate)))


def _letter_view(said: PersonalLetter) -> LetterView:
    paragraphs = [f"{lead}. {text}" if lead else text for lead, text in said.paragraphs]
    return LetterView(headline=said.headline, paragraphs=paragraphs)


def _answer(outcomes: Sequence[Outcome]) -> StoredAnswer:
    items = [{"index": place} | _item(outcome) for place, outcome in enumerate(outcomes)]
    return StoredAnswer(207, {}, {"outcomes": items})


def _item(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, RequestRefused):
        return {"status": outcome.status, "request": None, "problem": problem_of(outcome).body()}
    return {"status": 202, "request": accepted_view(outcome), "problem": None}
