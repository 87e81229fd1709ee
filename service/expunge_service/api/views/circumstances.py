"""What the sentence of a task's reason names that changes while the task waits: numbers, moments, other versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from expunge_service.certificates import differed
from expunge_service.infra.db import batches
from expunge_service.infra.tables import Version
from expunge_service.infra.time import day_after, day_and_time
from expunge_service.models import done_at, left_behind
from expunge_service.requests import ModelTask, Reason, outstanding, reason_of


def circumstances(
    session: Session, tasks: Sequence[ModelTask], moments: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return the values that the sentence may name, by the task's id; without tasks of which nothing changes.

    ``moments``: when tasks are expected to be carried out. Each reason is asked about once, for all of its tasks.
    """
    waiting: dict[Reason | None, list[ModelTask]] = {}
    for task in tasks:
        if task.reason is not None:
            waiting.setdefault(reason_of(task.reason), []).append(task)
    return {
        **_of_large(session, waiting.get(Reason.LARGE, [])),
        **_of_batched(session, waiting.get(Reason.AWAITING_BATCH, [])),
        **{
            task.id: {"time": day_and_time(moments[task.id])}
            for task in waiting.get(Reason.AWAITING_RETRAIN, ())
            if task.id in moments
        },
        **_of_dropped(session, waiting.get(Reason.ACCURACY_DROP, [])),
        **_of_lagging(session, waiting.get(Reason.AWAITING_CONSUMERS, [])),
    }


def _of_large(session: Session, tasks: Sequence[ModelTask]) -> dict[str, dict[str, Any]]:
    positions = outstanding(session, tasks)
    return {task.id: {"samples": len(positions[task.id]), "time": day_and_time(task.not_before)} for task in tasks}


def _of_batched(session: Session, tasks: Sequence[ModelTask]) -> dict[str, dict[str, Any]]:
    done = done_at(session, tasks)
    return {
        task.id: {"time": day_and_time(task.due_at), "done_by": day_after(done[task.id])}
        for task in tasks
        if task.due_at is not None and task.id in done
    }


_CLAIMS = select(Version.id, Version.claim).where(Version.id.in_(bindparam("ids", expanding=True)))


def _of_dropped(session: Session, tasks: Sequence[ModelTask]) -> dict[str, dict[str, Any]]:
    claims = {
        version: claim
        for ids in batches({task.current_id for task in tasks})
        for version, claim in session.execute(_CLAIMS, {"ids": ids})
    }
    return {
        task.id: {"runs": "two runs of this training differ"}
        for task in tasks
        if differed(claims.get(task.current_id, {}))
    }


def _of_lagging(session: Session, tasks: Sequence[ModelTask]) -> dict[str, dict[str, Any]]:
    late = left_behind(session, tasks)
    versions = {task.id: task.version for task in tasks}
    return {
        task_id: {"version": versions[task_id], "consumer": consumer, "served": served}
        for task_id, (consumer, served) in late.items()
    }
