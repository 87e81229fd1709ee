"""Cancelling a request: all of its tasks, or none. It is possible until a worker begins with one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from expunge.service.infra.db import now
from expunge.service.infra.tables import DeletionRequest, Generation, Model, SuppressionEntry, Task
from expunge.service.requests.identity_check import withdraw
from expunge.service.requests.reasons import Reason
from expunge.service.requests.states import RequestRefused, Status, awaits_decision
from expunge.service.requests.status import locked_tasks, settle
from expunge.service.requests.suppression import MEMBERS_FROZEN

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
    training = _in_training(session, {task.model_id for task in tasks})
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


def cancellable(session: Session, parts: Iterable[tuple[Task, Model]]) -> dict[str, int | None]:
    """Return, by the id of each request that can be cancelled now, about when the first worker begins with it.

    In microseconds since 1970; None: at any moment. ``parts``: all tasks of the requests, with their models.
    """
    at, known = now(session), list(parts)
    training = _in_training(session, {model.id for _, model in known})
    tasks: dict[str, list[tuple[Task, Model]]] = {}
    for task, model in known:
        tasks.setdefault(task.request_id, []).append((task, model))
    begins = {
        request_id: min(_begins(task, model) for task, model in mine)
        for request_id, mine in tasks.items()
        if not any(_has_begun(task, training, at) for task, _ in mine)
    }
    return {request_id: moment if moment > at else None for request_id, moment in begins.items()}


def _begins(task: Task, model: Model) -> int:
    """Return when a worker begins with the task at the earliest, as things stand."""
    return max(task.not_before, (model.due_at or 0) if task.reason == Reason.AWAITING_BATCH else 0)


def _has_begun(task: Task, training: Collection[str], at: int) -> bool:
    """Return whether a worker claimed the task, or trains its model anew without the people of such tasks.

    ``training``: the ids of the models that are trained. Inside its window, or before its approval, a task's person is
    trained on.
    """
    unclaimed = task.status == "queued" or (task.status == "blocked" and task.reason in _BLOCKED_BEFORE)
    if task.attempts or not unclaimed:
        return True
    decided = task.not_before <= at and task.reason != Reason.LARGE
    return decided and task.model_id in training


def _in_training(session: Session, models: Collection[str]) -> frozenset[str]:
    """Return the ids of those models of which a worker has begun to build a generation."""
    being_built = Generation.status.in_(("preparing", "candidate"))
    rows = select(Generation).where(Generation.model_id.in_(models), being_built)
    generations = session.scalars(rows.execution_options(populate_existing=True))  # a view may have read them unlocked
    return frozenset(
        generation.model_id
        for generation in generations
        if (generation.attempts or MEMBERS_FROZEN in (generation.manifest or {}))
        and not (generation.report or {}).get("dry_run")
    )


def _is_near_miss(session: Session, request: DeletionRequest) -> bool:
    """Return whether the request waits for a decision about its id since it was accepted, and has no task."""
    tasks = select(Task.id).where(Task.request_id == request.id).limit(1)
    return request.near is not None and session.scalar(tasks) is None
