"""Deletions that repeat a model's whole training wait for one another, well within the legal deadline.

The method says which these are, and the policy how long they may wait. Everybody else is forgotten at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.infra.db import batches
from expunge.service.infra.tables import DeletionRequest, Generation, Membership, Task
from expunge.service.infra.time import SECOND
from expunge.service.models.retrain_plan import measured_seconds
from expunge.service.queue import Claimed, Deletions, Postponed, Selection, target_of
from expunge.service.requests.reasons import Reason
from expunge.workers.runtime.model import Bench

REPAIR_SECONDS = 86_400
"""before the deadline, in which somebody can repair what fails"""
TRAININGS = 2
"""before the deadline: one, and one more should the first fail"""
ROUNDING = 1e-9


def collect(
    session: Session, job: Deletions, bench: Bench, selection: Selection
) -> tuple[Selection, dict[Claimed, Postponed]]:
    """Return what of the selection is forgotten now, and the tasks that wait from now on, each until its moment.

    A task waits once: one with a reason has waited, or has failed, and is forgotten now. Those whose time has come are
    claimed together with all others that wait.
    """
    people = _subjects(session, job, selection.target.positions)
    moments = _moments(session, job, selection.forget)
    waiting = {}
    for task, positions in selection.forget.items():
        whose = {people[position] for position in positions}
        if task.id in moments and bench.method.repeats(bench.problem, whose) >= 1.0 - ROUNDING:
            waiting[task] = Postponed(Reason.AWAITING_OTHERS, until=moments[task.id])
    now = {task: positions for task, positions in selection.forget.items() if task not in waiting}
    target = target_of(session, job.generation_id, frozenset().union(*now.values()))
    return replace(selection, forget=now, target=target), waiting


def _moments(session: Session, job: Deletions, tasks: Iterable[Claimed]) -> dict[str, int]:
    """Return until when each task may wait (microseconds since 1970); those with a reason are absent."""
    seconds = REPAIR_SECONDS + TRAININGS * (measured_seconds(session.get_one(Generation, job.generation_id)) or 0.0)
    columns = select(Task.id, Task.reason, DeletionRequest.created_at, DeletionRequest.due_at).join(
        DeletionRequest, DeletionRequest.id == Task.request_id
    )
    moments: dict[str, int] = {}
    for batch in batches(task.id for task in tasks):
        for task_id, reason, created_at, due_at in session.execute(columns.where(Task.id.in_(batch))):
            latest = created_at + job.policy.collect_seconds * SECOND
            if reason is None:
                moments[task_id] = latest if due_at is None else min(latest, due_at - int(seconds * SECOND))
    return moments


def _subjects(session: Session, job: Deletions, positions: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Return the subjects of the sample at each position, in order.

    The holder is read for its column alone: where the primary key has all columns of a query, SQLite reads the whole
    generation from it instead of searching the positions.
    """
    found: dict[int, list[str]] = {}
    columns = select(Membership.position, Membership.subject_digest, Membership.holder).where(
        Membership.generation_id == job.generation_id
    )
    for batch in batches(positions):
        for position, subject, _ in session.execute(columns.where(Membership.position.in_(batch))):
            found.setdefault(position, []).append(subject)
    return {position: tuple(sorted(subjects)) for position, subjects in found.items()}
