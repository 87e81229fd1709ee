"""Who serves a model, and which version they last said they serve."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from service.audit.log import record, recorded_at
from service.infra.db import now
from service.infra.tables import Consumer, Model, Task, Version
from service.infra.time import SECOND
from service.requests.reasons import Reason
from service.requests.status import settle

SILENT_SECONDS = 300


def report(session: Session, model: Model, name: str, version: Version) -> Consumer:
    """Note that a consumer serves ``version`` now."""
    row = session.get(Consumer, (model.id, name))
    if row is None:
        row = Consumer(model_id=model.id, name=name, tenant_id=model.tenant_id, version_id=version.id, seen_at=0)
        session.add(row)
    row.version_id, row.seen_at = version.id, now(session)
    return row


def standing(session: Session, model: Model, version: Version) -> list[dict[str, Any]]:
    """Return each consumer of the model with its status: current, behind ``version``, or unknown after five silent
    minutes.
    """
    since = now(session) - SILENT_SECONDS * SECOND
    rows = (
        select(Consumer, Version.number)
        .join(Version, Version.id == Consumer.version_id)
        .where(Consumer.model_id == model.id)
        .order_by(Consumer.name)
    )
    return [
        {"name": consumer.name, "version": number, "status": _status(consumer, number, version, since)}
        for consumer, number in session.execute(rows)
    ]


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


def moved_on(session: Session) -> list[str]:
    """Return the ids of the tasks that waited for consumers, and whose consumers have all moved on."""
    served, wanted = aliased(Version), aliased(Version)
    lagging = (
        select(Consumer.name)
        .join(served, served.id == Consumer.version_id)
        .where(Consumer.model_id == Task.model_id, served.number < wanted.number)
    )
    query = (
        select(Task.id)
        .join(wanted, wanted.id == Task.version_id)
        .where(Task.status == "running", Task.reason == Reason.AWAITING_CONSUMERS, ~lagging.exists())
    )
    return list(session.scalars(query))


def complete(session: Session) -> list[str]:
    """Complete those tasks; returns the requests that this changed."""
    at = recorded_at(session)
    tasks = [session.get_one(Task, task_id) for task_id in moved_on(session)]
    for task in tasks:
        task.status, task.completed_at = "completed", at
        task.reason = None if task.samples else Reason.ALREADY_DELETED
    return settle(session, [task.request_id for task in tasks])


def leave(session: Session, model: Model, consumer: Consumer) -> None:
    """Remove a consumer that no longer serves the model. Nothing waits for it from now on."""
    record(session, model.tenant_id, "consumer.removed", model_id=model.id, consumer=consumer.name)
    session.delete(consumer)


def _status(consumer: Consumer, number: int, version: Version, since: int) -> str:
    """Return the status. A silent consumer is unknown, never current."""
    if consumer.seen_at < since:
        return "unknown"
    return "current" if number >= version.number else "behind"
