"""Cancelling a request: all of its tasks inside the cancel window, or none."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session

from expunge.service.infra.db import now
from expunge.service.infra.tables import DeletionRequest, SuppressionEntry, Task
from expunge.service.requests.identity_check import withdraw
from expunge.service.requests.reasons import Reason
from expunge.service.requests.states import RequestRefused, Status, awaits_decision
from expunge.service.requests.status import locked_tasks, settle

_TOO_LATE = "The cancel window is over or a worker has begun; the request will be carried out."


def cancel(session: Session, request: DeletionRequest) -> None:
    """Cancel every task and lift the suppression entries: the person stays in the models. Idempotent.

    The models' rows are locked before the clock is read. A worker that claims does the same, so only one of the two
    finds the window in its favour. An unverified request has no tasks and no window. Raises RequestRefused.
    """
    if awaits_decision(Status(request.status), request.reason):
        if not withdraw(session, request):
            raise RequestRefused(409, "not_cancellable", _TOO_LATE)
        return
    tasks = locked_tasks(session, Task.request_id == request.id)
    at = now(session)
    session.refresh(request, with_for_update=True)
    if request.status == "cancelled":
        return
    waiting = ("queued", "blocked") if request.reason == Reason.LARGE else ("queued",)
    if not tasks or any(task.status not in waiting or task.not_before <= at for task in tasks):
        raise RequestRefused(409, "not_cancellable", _TOO_LATE)
    for task in tasks:
        task.status, task.completed_at = "cancelled", at
    session.execute(
        update(SuppressionEntry)
        .where(SuppressionEntry.request_id == request.id, SuppressionEntry.lifted_at.is_(None))
        .values(lifted_at=at, lifted_reason="cancelled")
    )
    settle(session, [request.id])
