"""The audit log and its actors, for the API, the page and the metrics."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from expunge_service.access import list_actors
from expunge_service.api.problems import ApiProblem, not_found
from expunge_service.api.types import Moment
from expunge_service.audit import CHECK_SECONDS, ROTATED, inclusion_proof, newest_head, nodes, signed_size
from expunge_service.infra.db import now
from expunge_service.infra.tables import AuditEntry, LogCheck, TreeHead
from expunge_service.infra.time import SECOND


class EntryView(BaseModel):
    """One leaf of the log. Of another tenant's entry only the hash is shown, which is enough to verify the log."""

    index: int
    leaf_hash: str
    kind: str | None
    request_id: str | None
    at: Moment | None
    actor: str | None = Field(description="the actor: an opaque id, or operator, worker or scheduler")
    actor_key: str | None = Field(description="id of the API key that was used; null: none was")
    actor_name: str | None = Field(
        description="as the table of actors has it now; it is not in the log. null: unknown or erased"
    )
    body: str | None = Field(description="the leaf's exact bytes: canonical JSON")


class InclusionView(BaseModel):
    """An RFC 6962 audit path from the leaf to the root of the signed head."""

    index: int
    size: int
    leaf_hash: str
    hashes: list[str] = Field(description="base64, from the leaf up")
    checkpoint: str


class ConsistencyView(BaseModel):
    """An RFC 6962 proof that the head of ``old_size`` is a prefix of the head of ``size``."""

    old_size: int
    size: int
    hashes: list[str] = Field(description="base64")
    checkpoint: str


def entry_views(session: Session, tenant_id: str, after: int, limit: int) -> list[EntryView]:
    """Return the entries of the signed log behind the index ``after``, in its order."""
    rows = select(AuditEntry).where(AuditEntry.log_index > after, AuditEntry.log_index < signed_size(session))
    found = session.scalars(rows.order_by(AuditEntry.log_index).limit(limit)).all()
    names = {each.id: each.name for each in list_actors(session, tenant_id)}
    return [_view(entry, tenant_id, names) for entry in found]


def own_entries(
    session: Session, tenant_id: str, *, before: int | None, kind: str, request: str, limit: int
) -> Sequence[AuditEntry]:
    """Return the entries that the tenant may read whole, newest first, from those below the index ``before``.

    ``kind``: the first word of their kind; it and ``request`` do not filter where they are empty.
    """
    rows = select(AuditEntry).where(_own(tenant_id), AuditEntry.log_index.is_not(None))
    if before is not None:
        rows = rows.where(AuditEntry.log_index < before)
    if kind:
        rows = rows.where(AuditEntry.kind.startswith(f"{kind}.", autoescape=True))
    if request:
        rows = rows.where(AuditEntry.request_id == request)
    return session.scalars(rows.order_by(AuditEntry.log_index.desc()).limit(limit)).all()


def own_entry(session: Session, tenant_id: str, index: int) -> AuditEntry:
    """Return the entry, which the tenant may read whole. Raises ApiProblem (404)."""
    entry = session.scalar(select(AuditEntry).where(AuditEntry.log_index == index, _own(tenant_id)))
    if entry is None:
        raise not_found("audit_entry")
    return entry


def _own(tenant_id: str) -> Any:
    return or_(AuditEntry.tenant_id == tenant_id, AuditEntry.kind == ROTATED)  # everybody verifies with these keys


def inclusion(session: Session, leaf: str) -> InclusionView:
    """Return the proof for a leaf, named by its index or its hash, under the newest head. Raises ApiProblem (404)."""
    wanted = AuditEntry.leaf_hash == leaf if len(leaf) == 64 else AuditEntry.log_index == int(leaf)
    found = session.execute(select(AuditEntry.log_index, AuditEntry.leaf_hash).where(wanted)).first()
    if found is None or found[0] is None:
        raise not_found("audit_entry")
    head = signed_head(session)
    if found[0] >= head.size:
        raise not_found("audit_entry")
    hashes = inclusion_proof(nodes(session), head.size, found[0])
    return InclusionView(index=found[0], size=head.size, leaf_hash=found[1], hashes=texts(hashes), checkpoint=head.note)


def signed_head(session: Session) -> TreeHead:
    head = newest_head(session)
    if head is None:
        raise ApiProblem(404, "head_not_found", "The log has no entry yet.", headers={"Retry-After": "1"})
    return head


def texts(hashes: list[bytes]) -> list[str]:
    return [b64encode(each).decode() for each in hashes]


def _view(entry: AuditEntry, tenant_id: str, names: dict[str, str | None]) -> EntryView:
    """Return the entry; ``names`` are those of the tenant's actors. Entries of older releases name no actor."""
    own = entry.tenant_id == tenant_id or entry.kind == ROTATED
    said = json.loads(entry.body) if own else {}
    return EntryView(
        index=entry.log_index or 0,
        leaf_hash=entry.leaf_hash or "",
        kind=entry.kind if own else None,
        request_id=entry.request_id if own else None,
        at=entry.created_at if own else None,
        actor=said.get("actor"),
        actor_key=said.get("actor_key"),
        actor_name=names.get(said.get("actor", "")),
        body=entry.body if own else None,
    )


def log_state(session: Session, last: LogCheck | None = None) -> dict[str, Any]:
    """Return what a check of the audit log found, and how many ``entries`` it has now; by default the scheduler's last.

    ``size``: the first entries of the log, which were verified.
    """
    last, head = last or session.get(LogCheck, 1), newest_head(session)
    waiting = session.scalar(select(func.count()).where(AuditEntry.log_index.is_(None))) or 0
    entries = (0 if head is None else head.size) + waiting
    state: dict[str, Any] = {"size": 0, "entries": entries, "checked_at": None, "fault": None}
    if last is None or (last.note is None and last.fault is None):
        return state | {"status": "empty" if head is None else "not checked yet"}
    state |= {"size": last.size, "checked_at": last.checked_at, "fault": last.fault}
    late = now(session) - last.checked_at > 2 * CHECK_SECONDS * SECOND
    return state | {"status": "tampered" if last.fault else "not checked lately" if late else "verified"}


def actors_of(session: Session, tenant_id: str, entries: Iterable[AuditEntry]) -> dict[int, str]:
    """Return the actor by the entry's row id. Entries of another tenant and of older releases name none."""
    names = {each.id: each.name for each in list_actors(session, tenant_id)}
    found: dict[int, str] = {}
    for entry in entries:
        actor = json.loads(entry.body).get("actor") or ""
        found[entry.id] = names.get(actor) or (f"{actor[:8]}, no name" if len(actor) == 32 else actor)
    return found


def taken_in_by(session: Session, tenant_id: str, requests: Sequence[str]) -> dict[str, str]:
    """Return, by request, its sender; empty where the log does not say."""
    accepted = (AuditEntry.request_id.in_(requests), AuditEntry.kind == "request.accepted")
    entries = session.scalars(select(AuditEntry).where(AuditEntry.tenant_id == tenant_id, *accepted)).all()
    said = actors_of(session, tenant_id, entries)
    return dict.fromkeys(requests, "") | {entry.request_id or "": said[entry.id] for entry in entries}
