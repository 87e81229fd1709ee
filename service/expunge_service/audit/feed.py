"""Change feed: the audit log's entries on requests and versions, in the log's order.

The log's order has no gaps, so a client that knows the last index it saw misses no entry. An entry appears when it is
integrated, within about a second.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from expunge_service.audit.log import signed_size
from expunge_service.infra.tables import AuditEntry, Model

_FIELDS = (
    "reason",
    "number",
    "checkpoint",
    "parent_checkpoint",
    "method",
    "version",
    "received_at",
    "due_at",
    "first_due_at",
)


@dataclass(frozen=True)
class Event:
    """``id`` is the entry's index in the log. ``data`` concerns one request or one model's version."""

    id: int
    kind: str
    data: dict[str, Any]

    def text(self) -> str:
        """Write the event in the form of server-sent events."""
        return f"id: {self.id}\nevent: {self.kind}\ndata: {json.dumps(self.data)}\n\n"


def newest_event(session: Session) -> int:
    """Return the index of the last entry under a signed head; -1 where the log is empty."""
    return signed_size(session) - 1


def events_after(session: Session, tenant_id: str, index: int, rooms: Collection[str], limit: int = 100) -> list[Event]:
    """Return the tenant's events of these ``rooms`` (``request``, ``version``) after ``index``, oldest first."""
    rows = (
        select(AuditEntry, Model.name)
        .outerjoin(Model, Model.id == AuditEntry.model_id)
        .where(AuditEntry.tenant_id == tenant_id, AuditEntry.log_index.between(index + 1, newest_event(session)))
        .where(or_(*(AuditEntry.kind.startswith(f"{room}.", autoescape=True) for room in sorted(rooms))))
        .order_by(AuditEntry.log_index)
        .limit(limit)
    )
    return [_event(entry, model) for entry, model in session.execute(rows)]


def _event(entry: AuditEntry, model: str | None) -> Event:
    """Copy the listed facts and no others: the entry of a publication also holds digests of other people."""
    body = json.loads(entry.body)
    data = {name: body[name] for name in _FIELDS if body.get(name) is not None}
    names = {"at": entry.created_at, "request": entry.request_id, "model": model}
    return Event(entry.log_index or 0, entry.kind, {name: value for name, value in names.items() if value} | data)
