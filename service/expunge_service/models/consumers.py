"""Consumers of a model, and the version that each last reported."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session, aliased

from expunge_service.audit import record, recorded_at
from expunge_service.infra.db import batches, now
from expunge_service.infra.tables import Consumer, Model, Task, Version
from expunge_service.infra.time import SECOND
from expunge_service.requests import ModelTask, Reason, RequestRefused, settle

SILENT_SECONDS = 300


def report_consumer(session: Session, model: Model, name: str, version: Version, actor_id: str) -> Consumer:
    """Note that a consumer serves ``version`` now. Its name belongs to the actor that reported it first.

    Raises RequestRefused (409) where that was another actor.
    """
    row = session.get(Consumer, (model.id, name))
    if row is None:  # of two first reports of a name, one is first
        session.execute(select(Model.id).where(Model.id == model.id).with_for_update())
        row = session.get(Consumer, (model.id, name))
    if row is None:
        row = Consumer(model_id=model.id, name=name, tenant_id=model.tenant_id)
    if row.actor_id not in (None, actor_id):
        removal = f"expunge models remove-consumer {model.name} {name}"
        what = f"Another actor reported the consumer {name} first. Report under another name, or run `{removal}`."
        raise RequestRefused(409, "consumer_of_another", what)
    first = row.actor_id is None
    row.version_id, row.seen_at, row.actor_id = version.id, now(session), actor_id
    session.add(row)
    if first:
        record(session, model.tenant_id, "consumer.added", model_id=model.id, consumer=name)
    return row


def standing(session: Session, model: Model, version: Version) -> list[dict[str, Any]]:
    """Return each consumer of the model with its status: current, behind ``version``, or unknown after five silent
    minutes.
    """
    at = now(session)
    rows = (
        select(Consumer, Version.number)
        .join(Version, Version.id == Consumer.version_id)
        .where(Consumer.model_id == model.id)
        .order_by(Consumer.name)
    )
    return [
        {"name": consumer.name, "version": number, "status": _status(consumer, number, version, at)}
        for consumer, number in session.execute(rows)
    ]


_REPORTED = (
    select(Consumer.model_id, Consumer.name, Version.number)
    .join(Version, Version.id == Consumer.version_id)
    .where(Consumer.model_id.in_(bindparam("models", expanding=True)))
    .order_by(Consumer.name)
)


def left_behind(session: Session, tasks: Collection[ModelTask]) -> dict[str, tuple[str, int]]:
    """Return by the id of each task the first consumer that serves an earlier version than the task's, and which."""
    reported: dict[str, list[tuple[str, int]]] = {}
    for models in batches({task.model_id for task in tasks}):
        for model_id, name, number in session.execute(_REPORTED, {"models": models}):
            reported.setdefault(model_id, []).append((name, number))
    late = {
        task.id: [report for report in reported.get(task.model_id, ()) if report[1] < (task.version or 0)]
        for task in tasks
    }
    return {task_id: reports[0] for task_id, reports in late.items() if reports}


def behind(session: Session, version_id: str | None) -> bool:
    """Return whether a known consumer of the version's model last reported an earlier one. Silent ones count too."""
    wanted, served = aliased(Version), aliased(Version)
    query = (
        select(Consumer.name)
        .join(served, served.id == Consumer.version_id)
        .join(wanted, wanted.model_id == Consumer.model_id)
        .where(wanted.id == version_id, served.number < wanted.number)
    )
    return session.scalar(query.limit(1)) is not None


def _moved_on() -> Select[str]:
    served, wanted = aliased(Version), aliased(Version)
    lagging = (
        select(Consumer.name)
        .join(served, served.id == Consumer.version_id)
        .where(Consumer.model_id == Task.model_id, served.number < wanted.number)
    )
    return (
        select(Task.id)
        .join(wanted, wanted.id == Task.version_id)
        .where(Task.status == "running", Task.reason == Reason.AWAITING_CONSUMERS, ~lagging.exists())
    )


MOVED_ON = _moved_on()
"""the ids of the tasks that waited for consumers, all of which have moved on"""


def complete_waiting(session: Session) -> list[str]:
    """Complete those tasks; returns the requests that this changed."""
    at = recorded_at(session)
    tasks = [session.get_one(Task, task_id) for task_id in session.scalars(MOVED_ON).all()]
    for task in tasks:
        task.status, task.completed_at = "completed", at
        task.reason = None if task.samples else Reason.ALREADY_DELETED
    return settle(session, [task.request_id for task in tasks])


def remove_consumer(session: Session, model: Model, consumer: Consumer) -> None:
    """Remove a consumer that no longer serves the model. No request waits for it from now on."""
    record(session, model.tenant_id, "consumer.removed", model_id=model.id, consumer=consumer.name)
    session.delete(consumer)


def is_silent(consumer: Consumer, at: int) -> bool:
    """Return whether it did not report lately. A report of the future, by a clock that had jumped ahead, is none."""
    return abs(at - consumer.seen_at) > SILENT_SECONDS * SECOND


def _status(consumer: Consumer, number: int, version: Version, at: int) -> str:
    """Return the status. A silent consumer is unknown, never current."""
    if is_silent(consumer, at):
        return "unknown"
    return "current" if number >= version.number else "behind"
