"""Deletion requests: taking them in, showing how far they are, deciding about them, retrying them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, WithJsonSchema, model_validator

from expunge_service import requests
from expunge_service.access import Caller, Scope, TwoPersonAct, searched
from expunge_service.api.dependencies import (
    Running,
    Service,
    agreed,
    awaits_another,
    count_search,
    problems,
    reading,
    require_scope,
    require_scopes,
    uncount_search,
)
from expunge_service.api.http.etag import Decided, IfNoneMatch, shown
from expunge_service.api.http.pagination import Limit, MomentCursor, Page, after, after_page, place_of
from expunge_service.api.http.polling import LEAST_SECONDS, retry_after
from expunge_service.api.intake import Outcome, take_in, windows_of, with_opening
from expunge_service.api.openapi import answer
from expunge_service.api.problems import ApiProblem, problem_of
from expunge_service.api.types import CaseId, ModelName, PersonalId, RequestId, When, one_of
from expunge_service.api.views.requests import (
    AcceptedView,
    DeletionRequestView,
    Justification,
    ReceiptView,
    accepted_view,
    deciding,
    find_request,
    moments_of,
    request_view,
    request_views,
)
from expunge_service.api.views.selection import newest
from expunge_service.audit import canonical
from expunge_service.infra.db import now
from expunge_service.infra.limits import LIMITS
from expunge_service.infra.pseudonyms import digest
from expunge_service.infra.tracing import carried
from expunge_service.requests import (
    IDEMPOTENCY_KEY,
    Order,
    Regulation,
    RequestRefused,
    Status,
    StoredAnswer,
    Suppress,
    Use,
    approve,
    awaits_decision,
    cancel,
    extend,
    read_key,
    retry,
)

router = APIRouter(tags=["deletion requests"])
Decider = Annotated[Caller, Depends(require_scopes([Scope.DELETIONS_DECIDE], [Scope.DELETIONS_READ]))]
Rehearser = Annotated[
    Caller, Depends(require_scopes([Scope.PEOPLE_SEARCH], [Scope.DELETIONS_DECIDE], [Scope.DELETIONS_READ]))
]
Sender = Annotated[Caller, Depends(require_scopes([Scope.DELETIONS_WRITE], [Scope.DELETIONS_READ]))]
Mender = Annotated[
    Caller, Depends(require_scopes([Scope.MODELS_ADMIN, Scope.DELETIONS_DECIDE], [Scope.DELETIONS_READ]))
]
Applicant = Annotated[Caller, Depends(require_scope(Scope.DELETIONS_WRITE))]
Reader = Annotated[Caller, Depends(require_scope(Scope.DELETIONS_READ))]
KeyHeader = Annotated[
    list[str] | None,
    Header(alias="Idempotency-Key"),
    WithJsonSchema({"type": "string", "pattern": IDEMPOTENCY_KEY, "maxLength": 257}),
]
_PATH = "/v1/deletion-requests"
ITEM = _PATH + "/{request_id:digest}"
"""so that fixed addresses, as /batch, are not taken for ids"""


def _too_many(limit: int) -> ApiProblem:
    errors = [{"pointer": "/sample_ids", "detail": f"At most {limit} ids."}]
    return ApiProblem(422, "too_many_sample_ids", "Name fewer samples, or send several requests.", errors)


def _few(ids: Any) -> Any:
    """Refuse too many ids before any is looked at."""
    if isinstance(ids, list) and len(ids) > LIMITS.sample_ids:
        raise _too_many(LIMITS.sample_ids)
    return ids


class DeletionOrder(BaseModel):
    """The person to delete, by one id or by several, or single samples."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=one_of(subject_id="string", subject_ids="array", sample_ids="array")
        | {"examples": [{"subject_id": "person-7", "regulation": "gdpr", "case_id": "C-101"}]},
    )

    subject_id: PersonalId | None = None
    subject_ids: list[PersonalId] | None = Field(
        default=None,
        min_length=1,
        max_length=50,
        fail_fast=True,
        description="all ids of one person: one request, one certificate",
    )
    sample_ids: Annotated[
        list[PersonalId] | None,
        Field(min_length=1, max_length=LIMITS.sample_ids, fail_fast=True),
        BeforeValidator(_few),
    ] = None
    models: list[ModelName] | None = Field(default=None, min_length=1, max_length=1000, fail_fast=True)
    regulation: Regulation | None = None
    due_at: When | None = Field(default=None, description="your own deadline, in place of a regulation's")
    received_at: When | None = Field(default=None, description="when the person asked; now, if left out")
    verified: StrictBool = Field(default=True, description="false: held, and changes no model, until it is verified")
    suppress: Suppress = Field(default=Suppress.EVERYWHERE, description="where later registrations leave them out")
    expected_samples: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        strict=True,
        description="how many samples of the person the models hold, by your books, as an estimate counts them; where "
        "they hold another number, the request waits for a decision. For verified orders of a person",
    )
    case_id: CaseId | None = Field(
        default=None, description="your own id of the case; it must not name the person. It is not in the audit log"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> DeletionOrder:
        if sum(each is not None for each in (self.subject_id, self.subject_ids, self.sample_ids)) != 1:
            raise ValueError("give one of subject_id, subject_ids and sample_ids")
        return self

    def order(self, default: str | None = None, time_zone: str = "") -> Order:
        """Return the order. One that names no regulation and no deadline is under ``default``.

        ``time_zone``: the controller's; empty: it is not set. Raises RequestRefused where two of its fields contradict
        each other.
        """
        if self.due_at is not None and self.regulation is not None:
            errors = [{"pointer": "/due_at", "detail": "Give either regulation or due_at."}]
            raise RequestRefused(422, "two_deadlines", "The order names a law and another deadline.", errors)
        if self.suppress is Suppress.NAMED_MODELS and self.models is None:
            errors = [{"pointer": "/models", "detail": "suppress: named_models needs models."}]
            what = "The order suppresses in named models, and names none."
            raise RequestRefused(422, "no_models_named", what, errors)
        if self.expected_samples is not None and (self.sample_ids is not None or not self.verified):
            errors = [{"pointer": "/expected_samples", "detail": "Leave it out, or send a verified order of a person."}]
            what = "expected_samples needs a verified order of a person."
            raise RequestRefused(422, "not_counted", what, errors)
        chosen = "regulation" in self.model_fields_set or self.due_at is not None
        law = self.regulation if chosen else default
        return Order(
            subject_id=self.subject_id,
            subject_ids=None if self.subject_ids is None else tuple(self.subject_ids),
            sample_ids=None if self.sample_ids is None else tuple(self.sample_ids),
            models=None if self.models is None else tuple(self.models),
            regulation=None if law is None else Regulation(law),
            due_at=self.due_at,
            received_at=self.received_at,
            time_zone=time_zone or None,
            verified=self.verified,
            suppress=self.suppress,
            expected_samples=self.expected_samples,
            case_id=self.case_id,
            traceparent=carried(),
        )


@router.post(
    _PATH,
    status_code=202,
    response_model=AcceptedView | ReceiptView,
    responses=problems(400, 409) | answer(202, "Location", "Retry-After"),
    summary="Forget a person",
)
def create(
    *,
    order: DeletionOrder,
    service: Running,
    caller: Applicant,
    idempotency_key: KeyHeader = None,
) -> Response:
    use = key_use(service, caller, idempotency_key, _PATH, order)
    check_length(order, service.limits.sample_ids)
    taken = take_in(service, use, [ordered(service, order)], _answer)
    answer = with_opening(service, caller, taken.stored.answer, taken.salts)
    return JSONResponse(answer, taken.stored.status, taken.stored.headers)


@router.get(
    _PATH,
    response_model=Page[DeletionRequestView],
    responses=problems(),
    summary="List deletion requests, newest first",
)
def index(
    *,
    request: Request,
    response: Response,
    service: Running,
    caller: Reader,
    status: Annotated[Status | None, Query()] = None,
    model: Annotated[ModelName | None, Query()] = None,
    id_prefix: Annotated[
        str | None, Query(pattern="^[0-9a-f]{1,32}$", description="the first digits of the ids that are wanted")
    ] = None,
    case_id: Annotated[CaseId | None, Query()] = None,
    cursor: MomentCursor = None,
    limit: Limit = 50,
) -> Page[DeletionRequestView]:
    with service.database.read() as session:
        found = newest(
            session,
            caller.tenant_id,
            status=status,
            model=model,
            id_prefix=id_prefix,
            case_id=case_id,
            after=None if cursor is None else after(cursor),
            limit=limit + 1,
        )
        data = request_views(session, found[:limit], caller.scopes)
    return Page(data=data, **after_page(request, response, found, limit, place_of))


@router.get(ITEM, response_model=DeletionRequestView, responses=reading(404), summary="Show a request")
def show(
    request_id: RequestId, service: Running, caller: Reader, response: Response, if_none_match: IfNoneMatch = None
) -> DeletionRequestView:
    with service.database.read() as session:
        view = request_view(session, find_request(session, caller.tenant_id, request_id), caller.scopes)
        at = now(session)
    if view.status in (Status.QUEUED, Status.RUNNING):
        response.headers["Retry-After"] = str(retry_after(moments_of(view), at))
    return shown(view, response, if_none_match)


@router.delete(
    ITEM,
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Cancel a request with which no worker has begun",
)
def withdraw(request_id: RequestId, service: Running, caller: Sender, state: Decided) -> DeletionRequestView:
    with deciding(service.database, request_id, caller, state) as (session, row):
        cancel(session, row)
        return state.changed(request_view(session, row, caller.scopes))


@router.post(
    ITEM + "/extend",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Extend the deadline, once",
)
def prolong(request_id: RequestId, service: Running, caller: Decider, state: Decided) -> DeletionRequestView:
    with deciding(service.database, request_id, caller, state) as (session, row):
        extend(session, row)
        return state.changed(request_view(session, row, caller.scopes))


def key_use(service: Service, caller: Caller, header: list[str] | None, path: str, body: BaseModel) -> Use:
    """Return the call's use of its Idempotency-Key. Raises RequestRefused (400)."""
    sent = canonical({"path": path, "body": body.model_dump(mode="json", exclude_unset=True)})
    return Use(caller, read_key(header), digest(service.pepper, "idempotency", sent))


def ordered(service: Service, order: DeletionOrder) -> Order | RequestRefused:
    """Return the order, or why it is refused."""
    try:
        return order.order(service.settings.regulation, service.settings.time_zone)
    except RequestRefused as refusal:
        return refusal


def _answer(outcomes: Sequence[Outcome]) -> StoredAnswer:
    (outcome,) = outcomes
    if isinstance(outcome, RequestRefused):
        raise outcome
    headers = {"Location": f"{_PATH}/{outcome.request.id}", "Retry-After": str(LEAST_SECONDS)}
    return StoredAnswer(202, headers, accepted_view(outcome))


def check_length(order: DeletionOrder, limit: int) -> None:
    """Raises ApiProblem (422) where an order names more samples than this installation takes."""
    if order.sample_ids is not None and len(order.sample_ids) > limit:
        raise _too_many(limit)


@router.post(
    ITEM + "/verify",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Go on with an unverified request",
)
def verify(request_id: RequestId, service: Running, caller: Decider, state: Decided) -> DeletionRequestView:
    with deciding(service.database, request_id, caller, state) as (session, row):
        undecided = awaits_decision(Status(row.status), row.reason)
        may = not undecided or agreed(service, session, caller, TwoPersonAct.VERIFY, row.id)
        to_notify = requests.verify(session, row, windows_of(service)) if may else ()
        view = request_view(session, row, caller.scopes)
    if not may:
        raise awaits_another(TwoPersonAct.VERIFY)
    service.notify(to_notify)
    return state.changed(view)


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
    state: Decided,
) -> DeletionRequestView:
    with deciding(service.database, request_id, caller, state) as (session, row):
        requests.reject(session, row, body.reason)
        return state.changed(request_view(session, row, caller.scopes))


class RightId(BaseModel):
    """The person's id as your own books have it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"subject_id": "000017"}]})

    subject_id: PersonalId


@router.post(
    ITEM + "/same-person",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Say that a request's id is another spelling of this one",
)
def say_same(
    *,
    request_id: RequestId,
    body: RightId,
    service: Running,
    caller: Decider,
    state: Decided,
) -> DeletionRequestView:
    """Delete the person with this id. It must be written nearly as the request's, and be one that a model knows."""
    count_search(service, caller)
    with deciding(service.database, request_id, caller, state) as (session, row):
        # a second person must name the same id; the consent's row does not give it away
        named = digest(service.pepper, "subject", f"{row.id}\0{body.subject_id}")[:32]
        may = row.near is None or agreed(service, session, caller, TwoPersonAct.DECIDE, named)
        changed_models = (
            requests.same_person(session, service.pepper, row, body.subject_id, windows_of(service)) if may else ()
        )
        view = request_view(session, row, caller.scopes)
    uncount_search(service, caller)
    if not may:
        raise awaits_another(TwoPersonAct.DECIDE)
    service.notify(changed_models)
    return state.changed(view)


class RightIdOf(RightId):
    """A request, and the person's id as your own books have it."""

    request: RequestId


class ManyRightIds(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"decisions": [{"request": "0" * 32, "subject_id": "000017"}]}]}
    )

    decisions: list[RightIdOf] = Field(min_length=1, max_length=1000, fail_fast=True)


class RehearsedId(BaseModel):
    """What `same-person` would make of one id."""

    index: int
    only: bool | None = Field(
        description="true: this person alone has nearly the request's id; false: others have, too; null: see `problem`"
    )
    problem: dict[str, Any] | None = Field(description="why it would be refused; null: it would be taken")


class RehearsedIds(BaseModel):
    search: str = Field(description="id of this search: the audit log's entry names it and the key, not the people")
    outcomes: list[RehearsedId]


@router.post(
    _PATH + "/same-person/rehearse",
    response_model=RehearsedIds,
    responses=problems(),
    summary="Say for many requests whether the id that you name is the only one near",
)
def rehearse_same(body: ManyRightIds, service: Running, caller: Rehearser) -> RehearsedIds:
    """Compare the ids, and decide nothing. An id that is not near counts as a search for it."""
    count_search(service, caller, len(body.decisions))
    outcomes = []
    with service.database.write() as session:
        search = searched(session, caller, len(body.decisions))
        for index, named in enumerate(body.decisions):
            only, problem = None, None
            try:
                row = find_request(session, caller.tenant_id, named.request)
                only = requests.rehearse_same(session, service.pepper, row, named.subject_id)
            except ApiProblem as error:
                problem = error
            except RequestRefused as error:
                problem = problem_of(error)
            outcomes.append(RehearsedId(index=index, only=only, problem=None if problem is None else problem.body()))
    uncount_search(service, caller, sum((each.problem or {}).get("code") != "not_near" for each in outcomes))
    return RehearsedIds(search=search, outcomes=outcomes)


@router.post(
    ITEM + "/other-person",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Say that a request's id is right as it is written",
)
def say_other(request_id: RequestId, service: Running, caller: Decider, state: Decided) -> DeletionRequestView:
    with deciding(service.database, request_id, caller, state) as (session, row):
        may = row.near is None or agreed(service, session, caller, TwoPersonAct.DECIDE, row.id)
        changed_models = requests.other_person(session, row, windows_of(service)) if may else ()
        view = request_view(session, row, caller.scopes)
    if not may:
        raise awaits_another(TwoPersonAct.DECIDE)
    service.notify(changed_models)
    return state.changed(view)


@router.post(
    ITEM + "/approve",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Approve an unusually large request",
)
def approve_large(request_id: RequestId, service: Running, caller: Decider, state: Decided) -> DeletionRequestView:
    with deciding(service.database, request_id, caller, state) as (session, row):
        to_notify = approve(session, row)
        if not to_notify:
            raise ApiProblem(409, "not_large", "The request does not wait for an approval.")
        view = request_view(session, row, caller.scopes)
    service.notify(to_notify)
    return state.changed(view)


@router.post(
    ITEM + "/retry",
    response_model=DeletionRequestView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Retry a blocked request",
)
def retry_request(request_id: RequestId, service: Running, caller: Mender, state: Decided) -> DeletionRequestView:
    with deciding(service.database, request_id, caller, state) as (session, row):
        if awaits_decision(Status(row.status), row.reason):
            raise ApiProblem(409, "unverified", "This request is not verified. Verify it, or reject it.")
        if row.near is not None:
            detail = "This request waits for a decision about its id. Use same-person or other-person."
            raise ApiProblem(409, "near_miss", detail)
        to_notify = retry(session, row)
        if not to_notify:
            raise ApiProblem(409, "not_blocked", "Only a request that is blocked or awaits_others can be retried.")
        view = request_view(session, row, caller.scopes)
    service.notify(to_notify)
    return state.changed(view)
