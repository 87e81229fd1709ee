"""Settling requests: their stored status follows from their tasks, in the transaction that changed a task."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table, Update, bindparam, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from expunge_service.audit import canonical, entry, record_entries, recorded_at
from expunge_service.infra.db import batches, log_after_commit
from expunge_service.infra.tables import Certificate, DeletionRequest, Model, Task
from expunge_service.infra.time import SECOND, rfc_3339
from expunge_service.infra.tracing import carried
from expunge_service.requests.reasons import Reason, explain
from expunge_service.requests.states import Status, derive, stands_alone, step
from expunge_service.requests.still_to_delete import holds_on
from expunge_service.requests.tasks_with_models import ModelTask, model_tasks
from expunge_service.requests.webhooks import WebhookEvent, announce, is_wanted


class _Columns(NamedTuple):
    """The columns of a request's row that hold its status."""

    status: Status
    reason: str | None
    completed_at: int | None


class _Parts(NamedTuple):
    """What the models do about a request: ``models`` as news tells it, and the names and ids behind its reason."""

    models: list[dict[str, Any]]
    blocking: list[str]
    holds: list[str]


@dataclass(frozen=True)
class _Settled:
    request: DeletionRequest
    tasks: Sequence[Any]
    columns: _Columns
    certified: bool
    recorded: bool


log = logging.getLogger(__name__)
_NEWS = {
    Status.COMPLETED: WebhookEvent.REQUEST_COMPLETED,
    Status.BLOCKED: WebhookEvent.REQUEST_BLOCKED,
    Status.CANCELLED: WebhookEvent.REQUEST_CANCELLED,
    Status.REJECTED: WebhookEvent.REQUEST_REJECTED,
}
SETTLED_AT_ONCE = 5_000
_UNRECORDED = {(Status.QUEUED, Status.RUNNING), (Status.RUNNING, Status.QUEUED)}
_REQUESTS, _TASKS = DeletionRequest.__table__, Task.__table__.c
_OUTCOME = ("request_id", "model_id", "version_id", "samples", "method", "reason")
"""the columns of a task that the outcome of its request is made of"""


def locked_tasks(session: Session, *which: ColumnElement[bool]) -> Sequence[Task]:
    """Return these tasks in id order, with their models' rows locked. They are read after that.

    Publications, retirements and cancellations lock the same rows first. So what a task is here, it stays until the
    transaction ends.
    """
    models = select(Task.model_id).where(*which)
    session.execute(select(Model.id).where(Model.id.in_(models)).order_by(Model.id).with_for_update()).all()
    tasks = select(Task).where(*which).order_by(Task.id)
    return session.scalars(tasks.execution_options(populate_existing=True)).all()


def change_tasks(session: Session, ids: Sequence[str], **values: Any) -> None:
    """Set the same values in all these tasks' rows; ``settle`` their requests afterwards."""
    session.flush()
    _change(session, Task.__table__, ids, values)


def _change(session: Session, table: Table, ids: Sequence[str], values: Mapping[str, Any]) -> None:
    new = {f"new_{name}": value for name, value in values.items()}
    for batch in batches(ids):
        session.execute(_change_of(table, tuple(values)), {"ids": batch, **new})


@cache
def _change_of(table: Table, names: tuple[str, ...]) -> Update:
    """Return the UPDATE of these columns. It is built once, which takes three times as long as to run it."""
    chosen = update(table).where(table.c.id.in_(bindparam("ids", expanding=True)))
    return chosen.values({name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names})


def settle(session: Session, request_ids: Iterable[str]) -> list[str]:
    """Recompute and store the status of these requests; return the ids of those that changed.

    Call it after the tasks were changed, in the same transaction, API and workers alike. Rows are locked in id
    order, before the tasks are read: of two transactions that finish two tasks of one request, the second sees both.
    """
    session.flush()
    changed: list[str] = []
    for batch in batches(sorted(set(request_ids)), SETTLED_AT_ONCE):
        changed += _settle(session, batch)
    return changed


_LOCKED = (
    select(DeletionRequest)
    .where(DeletionRequest.id.in_(bindparam("ids", expanding=True)))
    .order_by(DeletionRequest.id)
    .with_for_update()
    .execution_options(populate_existing=True)
)
_PARTS = (
    select(_TASKS.request_id, _TASKS.status, _TASKS.model_id, _TASKS.version_id)
    .add_columns(_TASKS.samples, _TASKS.method, _TASKS.reason)
    .where(_TASKS.request_id.in_(bindparam("ids", expanding=True)))
    .order_by(_TASKS.id)
)


def _settle(session: Session, wanted: list[str]) -> list[str]:
    requests = session.scalars(_LOCKED, {"ids": wanted}).all()
    tasks: dict[str, list[Any]] = {request.id: [] for request in requests}
    for task in session.execute(_PARTS, {"ids": wanted}):
        tasks[task.request_id].append(task)
    at = recorded_at(session)
    settled = [each for request in requests if (each := _settled(request, tasks[request.id], at)) is not None]
    _store(session, settled)
    return [each.request.id for each in settled]


_BEGUN = (
    update(_REQUESTS)
    .where(_REQUESTS.c.id.in_(bindparam("ids", expanding=True)), _REQUESTS.c.status == Status.QUEUED.value)
    .values(status=Status.RUNNING.value, reason=None, completed_at=None)
    .returning(_REQUESTS.c.id)
)


def settle_begun(session: Session, request_ids: Sequence[str]) -> None:
    """Do what ``settle`` does for requests of which a task has just begun to run: the queued ones run now."""
    begun = {found for batch in batches(request_ids) for found in session.scalars(_BEGUN, {"ids": batch})}
    settle(session, [each for each in request_ids if each not in begun])


def end_open_tasks(session: Session, model_id: str, reason: Reason) -> None:
    """Complete every open task of a model that is not served any more; ``reason`` says so in each.

    No sample leaves with it. A task whose version is published and that waits for consumers keeps what it did.
    """
    settle(session, complete_open_tasks(session, model_id, reason))


def complete_open_tasks(session: Session, model_id: str, reason: Reason) -> list[str]:
    """Do what ``end_open_tasks`` does, but for the requests: return their ids, to be settled."""
    at = recorded_at(session)
    open_ones = Task.status.in_(("queued", "running", "blocked"))
    tasks = session.scalars(select(Task).where(Task.model_id == model_id, open_ones)).all()
    for task in tasks:
        done = task.samples if task.reason == Reason.AWAITING_CONSUMERS else 0
        task.status, task.samples, task.reason, task.completed_at = "completed", done, reason, at
    return [task.request_id for task in tasks]


def _settled(request: DeletionRequest, tasks: list[Any], at: int) -> _Settled | None:
    """Return the change of status that follows from the tasks; None where the stored one is right."""
    old = Status(request.status)
    if not tasks and stands_alone(old, request.reason):
        return None
    asked = request.near is not None
    new = step(old, Status.BLOCKED if asked else derive(task.status for task in tasks))
    reason = Reason.NEAR_MISS if asked else _reason(new, tasks)
    same_question = (reason == Reason.NEAR_MISS) == (request.reason == Reason.NEAR_MISS)
    if new == old and same_question and (new is not Status.COMPLETED or request.completed_at is not None):
        return None
    done = new is Status.COMPLETED
    return _Settled(
        request,
        tasks,
        _Columns(new, reason, at if done else None),
        certified=done and any(task.version_id for task in tasks),
        recorded=(old, new) not in _UNRECORDED,  # the worker's claim is an entry already, one for the whole batch
    )


_CERTIFICATES = insert(Certificate.__table__)


def _store(session: Session, settled: list[_Settled]) -> None:
    """Write the changes, one statement for all requests with equal values: an update settles thousands."""
    alike: dict[_Columns, list[str]] = {}
    for each in settled:
        alike.setdefault(each.columns, []).append(each.request.id)
        for name, value in each.columns._asdict().items():
            set_committed_value(each.request, name, value)
    for columns, ids in alike.items():
        _change(session, _REQUESTS, ids, columns._asdict())
    certificates = [
        {"request_id": each.request.id, "completed_at": each.columns.completed_at, "tenant_id": each.request.tenant_id}
        for each in settled
        if each.certified
    ]
    if certificates:
        session.execute(_CERTIFICATES, certificates)
    recorded = [each for each in settled if each.recorded]
    outcomes = {
        each.request.id: _outcome(each.request, each.tasks)
        for each in recorded
        if each.columns.completed_at is not None
    }
    _record(session, [each.request for each in recorded], outcomes)


def record_status(session: Session, *requests: DeletionRequest) -> None:
    """Write the audit entries of the statuses that requests have just taken, and the news for the webhooks."""
    outcomes = outcomes_of(session, [request for request in requests if request.status == Status.COMPLETED])
    _record(session, requests, outcomes)


def _record(session: Session, requests: Sequence[DeletionRequest], outcomes: Mapping[str, str]) -> None:
    entries = [_entry(session, request, outcomes.get(request.id)) for request in requests]
    if entries:
        record_entries(session, entries)
    kinds = [(_NEWS.get(Status(request.status)), request) for request in requests]
    announce_requests(session, *((news, request) for news, request in kinds if news is not None))


def announce_requests(session: Session, *happened: tuple[WebhookEvent, DeletionRequest]) -> None:
    """Announce what happened to requests: what each model does, why and when; never the person. Log it as well.

    ``seconds`` of a line are those since the request was received. Call it after the tasks were written.
    """
    at = recorded_at(session)
    parts = _parts(session, [each for news, each in happened if is_wanted(session, each.tenant_id, news)])
    causes = _causes(session, [request for _, request in happened if request.status == Status.BLOCKED])
    for news, request in happened:
        facts = request.facts if request.near is not None else causes.get(request.id, request.facts)
        why = explain(request.reason, request.id, facts=facts)["title"]
        known = {"request_id": request.id, "status": request.status, "reason": request.reason, "why": why}
        if request.traceparent is not None and carried() is None:  # written for many callers: each line has its own
            known["traceparent"] = request.traceparent
        line = news.value.replace("deletion_request.", "request ")
        log_after_commit(session, log, line, **known, seconds=round((at - request.received_at) / SECOND, 3))
        if request.id in parts:
            models, blocking, holds = parts[request.id]
            told = {"id": request.id, "case_id": request.case_id, "status": request.status, "models": models}
            told |= explain(request.reason, request.id, blocking, holds, facts=facts)
            announce(session, request.tenant_id, news, told | _times(request))


def _causes(session: Session, requests: Sequence[DeletionRequest]) -> dict[str, dict[str, Any]]:
    """Return the facts of the reason of each blocked request, as its tasks have them; those without are left out."""
    found: dict[str, dict[str, Any]] = {}
    for batch in batches([request.id for request in requests]):
        columns = select(Task.request_id, Task.facts).where(Task.status == Status.BLOCKED, Task.request_id.in_(batch))
        found |= {key: facts for key, facts in session.execute(columns.order_by(Task.id.desc())) if facts}
    return found


def _parts(session: Session, requests: Sequence[DeletionRequest]) -> dict[str, _Parts]:
    """Return each request's parts: what every model does, the models that block it, and the legal holds."""
    reasons = {request.id: request.reason for request in requests if request.status == Status.BLOCKED}
    parts = {request.id: _Parts([], [], []) for request in requests}
    tasks = model_tasks(session, parts)
    on_hold: list[ModelTask] = []
    for task in tasks:
        request = parts[task.request_id]
        request.models.append(
            {"model": task.model, "status": task.status, "reason": task.reason, "version": task.version}
        )
        if task.status == Status.BLOCKED and task.reason == reasons.get(task.request_id, ""):
            request.blocking.append(task.model)
            if task.reason == Reason.LEGAL_HOLD:
                on_hold.append(task)
    kept_by = holds_on(session, on_hold)
    for task in on_hold:
        holds = parts[task.request_id].holds
        holds.extend(hold for hold in kept_by[task.id] if hold not in holds)
    return parts


def outcomes_of(session: Session, requests: Sequence[DeletionRequest]) -> dict[str, str]:
    """Return by request what its tasks came to, as HMAC-SHA-256 under the request's salt: 64 hex digits.

    The entry of its completion holds it, so that a task which is edited afterwards is seen. Without the salt it tells
    none of the models that the person was in.
    """
    tasks: dict[str, list[Any]] = {request.id: [] for request in requests}
    for batch in batches(tasks):
        for task in session.execute(_PARTS, {"ids": batch}):
            tasks[task.request_id].append(task)
    return {each.id: _outcome(each, tasks[each.id]) for each in requests}


def _outcome(request: DeletionRequest, tasks: Sequence[Any]) -> str:
    told = [{name: getattr(task, name) for name in _OUTCOME} for task in sorted(tasks, key=lambda task: task.model_id)]
    return hmac.new(request.salt, canonical({"tasks": told}).encode(), "sha256").hexdigest()


def _entry(session: Session, request: DeletionRequest, outcome: str | None) -> dict[str, Any]:
    completion: dict[str, Any] = {} if outcome is None else {"completed_at": request.completed_at, "outcome": outcome}
    return entry(
        session,
        request.tenant_id,
        f"request.{request.status}",
        request_id=request.id,
        reason=request.reason,
        received_at=request.received_at,
        due_at=request.due_at,
        **completion,
    )


def _times(request: DeletionRequest) -> dict[str, str | None]:
    moments = {name: getattr(request, name) for name in ("received_at", "due_at", "completed_at")}
    return {name: None if at is None else rfc_3339(at) for name, at in moments.items()}


def _reason(status: Status, tasks: list[Any]) -> str | None:
    """Return why a request is blocked, or that no person matched where it completed without any task."""
    if status is Status.BLOCKED:
        return next((task.reason for task in tasks if task.status == Status.BLOCKED), None)
    return Reason.NO_MATCH if status is Status.COMPLETED and not tasks else None
