"""Who serves a model, and which version they last said they serve."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db import now
from service.records import Consumer, Model, Version

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
    """How each consumer of the model stands to ``version``: current, behind, or unknown after five silent minutes."""
    since = now(session) - SILENT_SECONDS * 1_000_000
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


def _status(consumer: Consumer, number: int, version: Version, since: int) -> str:
    """A consumer that is silent is unknown, never current."""
    if consumer.seen_at < since:
        return "unknown"
    return "current" if number >= version.number else "behind"
