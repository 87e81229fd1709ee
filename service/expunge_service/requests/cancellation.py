"""Cancelling a request: all of its tasks, or none. It is possible until a worker begins with one of them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches, now
from expunge_service.infra.tables import DeletionRequest, Generation, SuppressionEntry, Task
from expunge_service.requests.identity_check import withdraw
from expunge_service.requests.reasons import Reason
from expunge_service.requests.states import RequestRefused, Status, awaits_decision
from expunge_service.requests.status import locked_tasks, settle
from expunge_service.requests.suppression import MEMBERS_FROZEN
from expunge_service.requests.tasks_with_models import ModelTask

_BLOCKED_BEFORE = (Reason.LARGE, Reason.NO_WORKER)
"""of tasks that no worker was to claim yet; all other reasons block a task in a claim"""
_TOO_LATE = "A worker has begun, or the request is over: it cannot be cancelled any more."


def cancel(session: Session, request: DeletionRequest) -> None:
    """Cancel every task and lift the suppression entries: the person stays in the models. Idempotent.

    The models' rows are locked before the tasks are read. A worker that claims does the same, so only one of the two
    comes first. An unverified request and a near miss have no tasks. Raises RequestRefused.
    """
    if awaits_decision(Status(request.status), request.reason) or _is_near_miss(session, request):
        if not withdraw(session, request):
            raise RequestRefused(409, "not_cancellable", _TOO_LATE)
        return
    tasks = locked_tasks(session, Task.request_id == request.id)
    at = now(session)
    session.refresh(request, with_for_update=True)
    if request.status == "cancelled":
        return
    training = _in_training(session, [request.id])
    if not tasks or any(_has_begun(task, training, at) for task in tasks):
        raise RequestRefused(409, "not_cancellable", _TOO_LATE)
    for task in tasks:
        task.status, task.completed_at = "cancelled", at
    session.execute(
        update(SuppressionEntry)
        .where(SuppressionEntry.request_id == request.id, SuppressionEntry.lifted_at.is_(None))
        .values(lifted_at=at, lifted_reason="cancelled")
    )
    request.near = None
    settle(session, [request.id])


def cancellable(session: Session, tasks: Collection[ModelTask]) -> dict[str, int | None]:
    """Return, by the id of each request that can be cancelled now, about when the first worker begins with it.

    In microseconds since 1970; None: at any moment. ``tasks``: all those of the requests.
    """
    at, training = now(session), _in_training(session, {task.request_id for task in tasks})
    by_request: dict[str, list[ModelTask]] = {}
    for task in tasks:
        by_request.setdefault(task.request_id, []).append(task)
    begins = {
        request_id: min(map(_begins, theirs))
        for request_id, theirs in by_request.items()
        if not any(_has_begun(task, training, at) for task in theirs)
    }
    return {request_id: moment if moment > at else None for request_id, moment in begins.items()}


def _begins(task: ModelTask) -> int:
    """Return when a worker begins with the task at the earliest, as things stand."""
    return max(task.not_before, (task.due_at or 0) if task.reason == Reason.AWAITING_BATCH else 0)


def _has_begun(task: Task | ModelTask, training: Collection[str], at: int) -> bool:
    """Return whether a worker claimed the task, or trains its model anew without the people of such tasks.

    ``training``: the ids of the models that are trained. Inside its window, or before its approval, a task's person is
    trained on.
    """
    unclaimed = task.status == "queued" or (task.status == "blocked" and task.reason in _BLOCKED_BEFORE)
    if task.attempts or not unclaimed:
        return True
    decided = task.not_before <= at and task.reason != Reason.LARGE
    return decided and task.model_id in training


_BEING_BUILT = (
    select(Generation.model_id, Generation.attempts, Generation.manifest, Generation.report)
    .join(Task, Task.model_id == Generation.model_id)
    .where(
        Task.request_id.in_(bindparam("requests", expanding=True)), Generation.status.in_(("preparing", "candidate"))
    )
)


def _in_training(session: Session, requests: Collection[str]) -> frozenset[str]:
    """Return the ids of the models that have a task of these requests and are trained anew by a worker."""
    return frozenset(
        model_id
        for some in batches(requests)
        for model_id, attempts, manifest, report in session.execute(_BEING_BUILT, {"requests": some})
        if (attempts or MEMBERS_FROZEN in (manifest or {})) and not (report or {}).get("dry_run")
    )


def _is_near_miss(session: Session, request: DeletionRequest) -> bool:
    """Return whether the request waits for a decision about its id since it was accepted, and has no task."""
    tasks = select(Task.id).where(Task.request_id == request.id).limit(1)
    return request.near is not None and session.scalar(tasks) is None
