"""Who did what, in words for a page: the name that the table of actors has now, or the opaque id's first digits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import list_actors
from expunge.service.infra.tables import AuditEntry


def actors_of(session: Session, tenant_id: str, entries: Iterable[AuditEntry]) -> dict[int, str]:
    """Return, by the entry's row id, who acted. Entries of another tenant and of older releases name nobody."""
    names = {each.id: each.name for each in list_actors(session, tenant_id)}
    found: dict[int, str] = {}
    for entry in entries:
        actor = json.loads(entry.body).get("actor") or ""
        found[entry.id] = names.get(actor) or (f"{actor[:8]}, no name" if len(actor) == 32 else actor)
    return found


def taken_in_by(session: Session, tenant_id: str, requests: Sequence[str]) -> dict[str, str]:
    """Return, by request, who sent it; empty where the log does not say."""
    accepted = (AuditEntry.request_id.in_(requests), AuditEntry.kind == "request.accepted")
    entries = session.scalars(select(AuditEntry).where(AuditEntry.tenant_id == tenant_id, *accepted)).all()
    said = actors_of(session, tenant_id, entries)
    return dict.fromkeys(requests, "") | {entry.request_id or "": said[entry.id] for entry in entries}
