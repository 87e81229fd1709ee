"""Many requests in one call, and what requests would cost."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from expunge.service.access import Caller, Scope, searched
from expunge.service.api.dependencies import Running, Service, count_search, problems, require_scope
from expunge.service.api.problems import problem_of
from expunge.service.api.routes.requests.deletion_requests import (
    DeletionOrder,
    KeyHeader,
    accept_order,
    check_length,
    key_use,
)
from expunge.service.api.views.requests import AcceptedView, ReceiptView, accepted_view, answer_for, salts
from expunge.service.requests import RequestRefused, StoredAnswer, begin_call, estimate, finish_call, opening

router = APIRouter(tags=["deletion requests"])
Writer = Annotated[Caller, Depends(require_scope(Scope.DELETIONS_WRITE))]
Seeker = Annotated[Caller, Depends(require_scope(Scope.PEOPLE_SEARCH))]
_BATCH = "/v1/deletion-requests/batch"


class BatchOrder(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"requests": [{"subject_id": "person-7"}, {"subject_id": "person-8"}]}]},
    )

    requests: list[DeletionOrder] = Field(min_length=1, max_length=1000)


class BatchItem(BaseModel):
    """What became of one item: 202 and the request, or the problem that kept it out."""

    index: int
    status: int
    request: AcceptedView | ReceiptView | None = None
    problem: dict[str, Any] | None = None


class BatchView(BaseModel):
    outcomes: list[BatchItem]


class CostView(BaseModel):
    model: str
    samples: int
    method: str
    guarantee: str
    budget_cost: int = Field(description="units of 1e-12 mu^2 of one update, however many requests it carries")
    updates_left: int | None = Field(description="after this request; null: nothing limits them")
    retrain_due: bool
    repeats: float | None = Field(
        description="share of a training that one request repeats on average; null: its updates repeat none"
    )
    seconds: float | None = Field(description="that this takes, by the time of the training")


class EstimateView(BaseModel):
    search: str = Field(description="id of this search: the audit log's entry names it and the key, not the person")
    samples: int
    models: list[CostView]


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
    to_notify: set[str] = set()
    with service.database.write(crash="api-inside-commit") as session:
        stored = begin_call(session, use)
        if stored is None:
            outcomes = []
            for place, order in enumerate(batch.requests):
                outcome, rung = _outcome(session, service, caller, order)
                outcomes.append({"index": place} | outcome)
                to_notify.update(rung)
            stored = StoredAnswer(207, {}, {"outcomes": outcomes})
            finish_call(session, use, stored, service.limits.idempotency_seconds)
        answer = {"outcomes": _opened(session, service, caller, stored.answer["outcomes"])}
    service.notify(sorted(to_notify))
    return JSONResponse(answer, stored.status)


@router.post(
    "/v1/deletion-requests/estimate",
    response_model=EstimateView,
    responses=problems(),
    summary="What a request would cost",
)
def estimate_cost(order: DeletionOrder, service: Running, caller: Seeker) -> EstimateView:
    check_length(order, service.limits.sample_ids)
    asked = order.order()
    ids = len(asked.subjects or set(asked.sample_ids or ()))
    count_search(service, caller, ids)
    with service.database.write() as session:
        costs = estimate(session, service.pepper, caller.tenant_id, asked)
        search = searched(session, caller, ids)
    models = [CostView(**vars(cost)) for cost in costs]
    return EstimateView(search=search, samples=sum(cost.samples for cost in costs), models=models)


def _outcome(
    session: Session, service: Service, caller: Caller, order: DeletionOrder
) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        accepted = accept_order(session, service, caller, order)
    except RequestRefused as error:
        return {"status": error.status, "request": None, "problem": problem_of(error).body()}, ()
    return {"status": 202, "request": accepted_view(accepted), "problem": None}, accepted.to_notify


def _opened(session: Session, service: Service, caller: Caller, outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the openings to the outcomes. They are computed at every replay and never stored."""
    ids = [outcome["request"]["id"] for outcome in outcomes if outcome["request"]]
    found = salts(session, ids)
    return [
        outcome
        if outcome["request"] is None
        else outcome
        | {
            "request": answer_for(caller, outcome["request"])
            | {"opening": opening(service.pepper, found[outcome["request"]["id"]]).hex()}
        }
        for outcome in outcomes
    ]
