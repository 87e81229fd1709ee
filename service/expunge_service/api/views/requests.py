"""Deletion requests as clients see them, for the API and the page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from expunge_service.access import Caller, Scope
from expunge_service.api.http.etag import ResourceState
from expunge_service.api.http.polling import LEAST_SECONDS, retry_after
from expunge_service.api.problems import not_found
from expunge_service.api.types import FreeText, Moment
from expunge_service.api.views.circumstances import circumstances
from expunge_service.api.views.versions import CLAIMED, GUARANTEE_NOTE, noted
from expunge_service.certificates import erasing
from expunge_service.infra.db import Database, batches
from expunge_service.infra.tables import DeletionRequest, Version
from expunge_service.models import expected
from expunge_service.requests import (
    Accepted,
    ModelTask,
    Reason,
    Role,
    Status,
    Suppress,
    awaits_decision,
    cancellable,
    explain,
    held_elsewhere,
    holds_on,
    model_tasks,
    never_verified,
    reason_of,
    related,
    suppressed,
)

_READER = frozenset({Scope.DELETIONS_READ})
"""the rights that every reader of a stored answer has; ``answer_for`` takes away what the others lack"""
_NOTE = (
    "what the text of the id alone says, and not who is in the data: it looks damaged, or as no id of the models does; "
    "null: no more"
)
_OPENING = Field(description="opens the commitment in the audit log and the certificate; it is not stored here")


class RemedyView(BaseModel):
    """What to do about a reason."""

    action: str
    by: Role = Field(description="who can do it")


class ActionView(BaseModel):
    """A step out: one call, and the command that makes it. Replace words in capitals by your own values."""

    verb: str
    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    command: str
    scopes: list[list[Scope]] = Field(description="what the key must hold: at least one of each group")
    body: dict[str, Any] | None = Field(description="the call's JSON; null: it has none")


class _Explained(BaseModel):
    """The explanation of a reason code."""

    reason: str | None = Field(description="a code of docs/reasons.md")
    title: str | None = Field(description="the reason in one sentence")
    remedy: RemedyView | None = Field(description="null: no step is left")
    actions: list[ActionView] = Field(description="the steps of the remedy; any of them may end the wait")


class ModelPart(_Explained):
    """One model's part in a request."""

    model: str
    status: str
    samples: int | None
    version: int | None
    method: str | None
    guarantee_note: str | None = Field(default=None, description=GUARANTEE_NOTE)
    scheduled_at: Moment | None = Field(
        description="when the update comes that a part waits for, together with others; null: it does not wait for one"
    )
    expected_at: Moment | None = Field(
        description="about when an open part is carried out, by the time that the model's last updates or its training "
        "took; null: not known, or later than that already"
    )


_MODEL_PARTS = TypeAdapter(list[ModelPart])


class DeletionRequestView(_Explained):
    id: str
    status: Status
    subject_digest: str | None = Field(
        description="null: the request names samples, or several ids of one person; or it is unverified, rejected or "
        "cancelled, and must not tell whether the person is known"
    )
    case_id: str | None = Field(description="your own id of the case")
    samples: int | None = Field(description="forgotten over all models; null while that is not known")
    suppress: Suppress = Field(description="where later registrations leave the person out")
    regulation: str | None
    received_at: Moment
    due_at: Moment | None
    completed_at: Moment | None
    extended_at: Moment | None = Field(description="when the deadline was extended; null: it was not")
    first_due_at: Moment | None = Field(description="the deadline before that")
    rejection: str | None = Field(description="why it was rejected; null: it was not")
    limited_to: list[str] | None = Field(None, description="the models that the request names; null: every model")
    models: list[ModelPart]
    cancellable: bool | None = Field(
        None,
        description="whether DELETE would cancel it: no worker has begun with any part. null: not shown with the "
        "acceptance, whose answer may be given again later",
    )
    cancellable_until: Moment | None = Field(
        None, description="about when a worker begins; null: at any moment, or it is not cancellable"
    )
    erasing: bool = Field(
        False, description="keys or state that left with it are about to be destroyed: certificate and letter wait"
    )
    related: list[str] | None = Field(
        None,
        description="other requests that name the same person, or one of the samples; newest first, at most 50. Shown "
        "with one request; null where it is unverified: that would tell whether the person is known",
    )


class AcceptedView(DeletionRequestView):
    remains_in: list[str] | None = Field(description="other models that hold the person, or may; null: not shown")
    note: str | None = Field(None, description=_NOTE)
    opening: str = _OPENING


class ReceiptView(BaseModel):
    """What a key without ``deletions:read`` sees. It does not depend on the people in the data."""

    id: str
    status: Literal["queued", "blocked"] = Field(description="blocked if the request was sent unverified, else queued")
    received_at: Moment
    due_at: Moment | None
    note: str | None = Field(None, description=_NOTE)
    opening: str = _OPENING


class Justification(BaseModel):
    """Why you decide so. It is stored, and must not name a person."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "the person asked to come back"}]}
    )

    reason: FreeText


def answer_for(caller: Caller, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what of a stored answer this caller may see.

    What became of the request takes ``deletions:read``. Where else the person is known takes ``people:search``. A key
    with neither gets a receipt, which does not depend on the people in the data.
    """
    if Scope.DELETIONS_READ not in caller.scopes:
        status = "blocked" if answer["reason"] == Reason.UNVERIFIED else "queued"
        return {"status": status} | {name: answer.get(name) for name in ("id", "received_at", "due_at", "note")}
    return answer if Scope.PEOPLE_SEARCH in caller.scopes else answer | {"remains_in": None}


def find_request(session: Session, tenant_id: str, request_id: str) -> DeletionRequest:
    """Return the tenant's request. Raises ApiProblem (404)."""
    row = session.get(DeletionRequest, request_id)
    if row is None or row.tenant_id != tenant_id:
        raise not_found("deletion_request")
    return row


@contextmanager
def deciding(
    database: Database, request_id: str, caller: Caller, state: ResourceState
) -> Iterator[tuple[Session, DeletionRequest]]:
    """Open a transaction on a request. Raises ApiProblem (404; 412 where the caller decided on another state of it)."""
    with database.write() as session:
        row = find_request(session, caller.tenant_id, request_id)
        state.require(request_view(session, row, caller.scopes))
        yield session, row


def salts(session: Session, requests: Collection[str]) -> dict[str, bytes]:
    """Return, by request, what its opening is derived from."""
    rows = select(DeletionRequest.id, DeletionRequest.salt).where(DeletionRequest.id.in_(requests))
    return {request_id: salt for request_id, salt in session.execute(rows)}


def moments_of(view: DeletionRequestView) -> list[int | None]:
    """Return when each open part of a request is expected to be done, or at least begun; None: not known."""
    open_parts = (part for part in view.models if part.status in ("queued", "running"))
    return [view.cancellable_until, *(part.expected_at or part.scheduled_at for part in open_parts)]


def changes_soon(view: DeletionRequestView, at: int) -> bool:
    """Return whether a page that shows the request is to look again within seconds."""
    works = view.status in (Status.QUEUED, Status.RUNNING)
    return works and retry_after(moments_of(view), at) == LEAST_SECONDS


def request_view(session: Session, request: DeletionRequest, scopes: Collection[str]) -> DeletionRequestView:
    (view,) = request_views(session, [request], scopes)
    return view if never_verified(session, request) else view.model_copy(update={"related": related(session, request)})


def request_views(
    session: Session, requests: Sequence[DeletionRequest], scopes: Collection[str] = ()
) -> list[DeletionRequestView]:
    """Return the requests with every model's part. ``scopes``: what their reasons may name of a person or a model."""
    tasks = model_tasks(session, [request.id for request in requests])
    parts: dict[str, list[ModelPart]] = {request.id: [] for request in requests}
    for task, part in zip(tasks, _parts(session, tasks, scopes), strict=True):
        parts[task.request_id].append(part)
    begins = cancellable(session, tasks)
    versions = {task.version_id for task in tasks if task.version_id is not None}
    late = erasing(session, versions) if versions else frozenset()
    waiting = {task.request_id for task in tasks if task.version_id in late}
    views = (_view(request, parts[request.id], _elsewhere(session, request, scopes), scopes) for request in requests)
    return [
        view.model_copy(
            update={
                "erasing": view.id in waiting,
                "cancellable": view.id in begins or awaits_decision(view.status, view.reason),
                "cancellable_until": begins.get(view.id),
            }
        )
        for view in views
    ]


def _parts(session: Session, tasks: Sequence[ModelTask], scopes: Collection[str]) -> list[ModelPart]:
    """Return the part that each task is of its request."""
    moments, notes = expected(session, tasks), _notes(session, tasks)
    holds = holds_on(session, [task for task in tasks if task.reason == Reason.LEGAL_HOLD])
    now_known = circumstances(session, tasks, moments)
    parts = (
        {
            "model": task.model,
            "status": task.status,
            "samples": task.samples,
            "version": task.version,
            "method": task.method,
            "guarantee_note": notes.get(task.version_id),
            "scheduled_at": task.due_at if task.status == "queued" and task.reason == Reason.AWAITING_BATCH else None,
            "expected_at": moments.get(task.id),
        }
        | explain(
            task.reason,
            task.request_id,
            [task.model],
            holds.get(task.id, ()),
            facts=_facts(task, now_known.get(task.id, {})),
            scopes=scopes,
        )
        for task in tasks
    )
    return _MODEL_PARTS.validate_python([*parts])  # at once: a request may have a thousand


_CLAIMED = select(Version.id, *CLAIMED).where(Version.id.in_(bindparam("ids", expanding=True)))


def _notes(session: Session, tasks: Iterable[ModelTask]) -> dict[str | None, str | None]:
    """Return ``guarantee_note`` of the versions that the tasks were carried out with, by the version's id."""
    versions = {task.version_id for task in tasks if task.version_id is not None}
    return {
        version: noted(*claimed)
        for ids in batches(versions)
        for version, *claimed in session.execute(_CLAIMED, {"ids": ids})
    }


def _facts(task: ModelTask, now_known: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the stored facts of the task's reason, and what changes while it waits."""
    facts, reason = task.facts or {}, None if task.reason is None else reason_of(task.reason)
    return facts if reason is None else facts | {reason: facts.get(reason, {}) | now_known}


def _elsewhere(session: Session, request: DeletionRequest, scopes: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the stored facts of the request's reason, and what models hold that it does not name."""
    facts = dict(request.facts or {})
    if request.reason == Reason.NOT_IN_NAMED_MODELS and Scope.PEOPLE_SEARCH in scopes:
        counts = held_elsewhere(session, request).items()
        held = [f"{name} still holds {count} {'sample' if count == 1 else 'samples'}" for name, count in counts]
        facts[Reason.NOT_IN_NAMED_MODELS] = {"elsewhere": ", ".join(held)} if held else {}
    return facts


def accepted_view(accepted: Accepted) -> dict[str, Any]:
    """Return the view of a request whose tasks were written a moment ago, as JSON and without its opening."""
    request = accepted.request
    parts = []
    for name in accepted.models:
        large = name in accepted.large
        status, reason = ("blocked", Reason.LARGE) if large else ("queued", None)
        why = explain(reason, request.id, [name])
        empty = dict.fromkeys(("samples", "version", "method", "scheduled_at", "expected_at"))
        parts.append(ModelPart(model=name, status=status, **empty, **why))
    view = _view(request, parts, request.facts, _READER).model_dump(mode="json")
    return view | {"remains_in": accepted.remains_in, "note": accepted.note}


def _view(
    request: DeletionRequest,
    parts: list[ModelPart],
    facts: dict[str, dict[str, Any]] | None,
    scopes: Collection[str],
) -> DeletionRequestView:
    """Return the request as clients see it. Where models have its reason, it is explained as the first of them is."""
    status = Status(request.status)
    why = explain(request.reason, request.id, facts=facts, scopes=scopes)
    theirs = [part for part in parts if part.reason == why["reason"]]
    steps = {step.model_dump_json(): step for part in theirs for step in part.actions}
    return DeletionRequestView(
        id=request.id,
        status=status,
        subject_digest=None if _may_be_a_strangers(status, request.reason) else request.subject_digest,
        case_id=request.case_id,
        samples=None if awaits_decision(status, request.reason) else _total(part.samples for part in parts),
        suppress=suppressed(request.models, request.suppress_after),
        regulation=request.regulation,
        received_at=request.received_at,
        due_at=request.due_at,
        completed_at=request.completed_at,
        extended_at=request.extended_at,
        first_due_at=request.first_due_at,
        rejection=request.rejection,
        limited_to=request.models,
        models=parts,
        **why
        | ({"title": theirs[0].title, "remedy": theirs[0].remedy, "actions": [*steps.values()]} if theirs else {}),
    )


def _may_be_a_strangers(status: Status, reason: str | None) -> bool:
    """Return whether the request may have ended, or wait, without a check that its person sent it."""
    return status in (Status.REJECTED, Status.CANCELLED) or awaits_decision(status, reason)


def _total(samples: Iterable[int | None]) -> int | None:
    counts = list(samples)
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
