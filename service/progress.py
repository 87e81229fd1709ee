"""Settling requests: their stored status follows from their tasks, in the transaction that changed a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.ledger import record, recorded_at
from service.moments import rfc_3339
from service.records import Certificate, DeletionRequest, Task
from service.requests import Status, derive, step
from service.webhooks import News, announce


class _Part(NamedTuple):
    status: str
    reason: str | None
    version_id: str | None


_NEWS = {Status.COMPLETED: News.REQUEST_COMPLETED, Status.HELD: News.REQUEST_HELD}
_UNRECORDED = {(Status.QUEUED, Status.RUNNING), (Status.RUNNING, Status.QUEUED)}


def settle(session: Session, request_ids: Iterable[str]) -> list[str]:
    """Recompute and store the status of these requests; return the ids of those that changed.

    Call it after the tasks were changed, in the same transaction, API and workers alike. Rows are locked in id
    order, before the tasks are read: of two transactions that finish two tasks of one request, the second sees both.
    """
    session.flush()
    wanted = sorted(set(request_ids))
    if not wanted:
        return []
    locked = (
        select(DeletionRequest)
        .where(DeletionRequest.id.in_(wanted))
        .order_by(DeletionRequest.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    requests = session.scalars(locked).all()
    tasks: dict[str, list[_Part]] = {request.id: [] for request in requests}
    columns = (
        select(Task.request_id, Task.status, Task.reason, Task.version_id)
        .where(Task.request_id.in_(wanted))
        .order_by(Task.id)
    )
    for request_id, status, reason, version_id in session.execute(columns):
        tasks[request_id].append(_Part(status, reason, version_id))
    return [request.id for request in requests if _settle_one(session, request, tasks[request.id])]


def _settle_one(session: Session, request: DeletionRequest, tasks: list[_Part]) -> bool:
    old = Status(request.status)
    if old is Status.REJECTED:
        return False
    new = step(old, derive(task.status for task in tasks))
    if new == old and (new is not Status.COMPLETED or request.completed_at is not None):
        return False
    request.status = new
    request.reason = _reason(new, tasks)
    request.completed_at = recorded_at(session) if new is Status.COMPLETED else None
    if request.completed_at is not None and any(task.version_id for task in tasks):
        session.add(Certificate(request_id=request.id, completed_at=request.completed_at, tenant_id=request.tenant_id))
    if (old, new) not in _UNRECORDED:  # the worker's claim is an entry already, one for the whole batch
        record_status(session, request)
    return True


def record_status(session: Session, request: DeletionRequest) -> None:
    """Write the audit entry of the status that a request has just taken, and the news for who wants them."""
    record(
        session,
        request.tenant_id,
        f"request.{request.status}",
        request_id=request.id,
        reason=request.reason,
        received_at=request.received_at,
        due_at=request.due_at,
    )
    news = _NEWS.get(Status(request.status))
    if news is not None:
        facts = {"id": request.id, "status": request.status, "reason": request.reason}
        announce(session, request.tenant_id, news, facts | _times(request))


def _times(request: DeletionRequest) -> dict[str, str | None]:
    moments = {name: getattr(request, name) for name in ("received_at", "due_at", "completed_at")}
    return {name: None if at is None else rfc_3339(at) for name, at in moments.items()}


def _reason(status: Status, tasks: list[_Part]) -> str | None:
    """Why a request is held; or, completed without any task, that nobody matched."""
    if status is Status.HELD:
        return next((task.reason for task in tasks if task.status == Status.HELD), None)
    return "no_match" if status is Status.COMPLETED and not tasks else None
