"""The audit log: its entries, its signed head, and proofs."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import Caller, Scope, list_actors
from expunge.service.api.dependencies import Running, holding, problems
from expunge.service.api.http.pagination import Limit, NumberCursor, Page, link
from expunge.service.api.problems import ApiProblem, not_found
from expunge.service.api.types import LARGEST_NUMBER, Moment
from expunge.service.audit import merkle as tree
from expunge.service.audit.log import newest_head, nodes, signed_size
from expunge.service.audit.succession import ROTATED
from expunge.service.infra.tables import AuditEntry, TreeHead

router = APIRouter(tags=["audit log"])
Reader = Annotated[Caller, Depends(holding(Scope.AUDIT_READ))]
LeafHash = Annotated[str, Query(pattern=r"^([0-9a-f]{64}|0|[1-9][0-9]{0,17})$", description="an index or a leaf hash")]


class EntryView(BaseModel):
    """One leaf of the log. Of another tenant's entry only the hash is shown, which is enough to verify the log."""

    index: int
    leaf_hash: str
    kind: str | None
    request_id: str | None
    at: Moment | None
    actor: str | None = Field(description="who did it: an opaque id, or operator, worker or scheduler")
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


@router.get("/v1/audit-log", response_model=Page[EntryView], responses=problems(), summary="Entries in log order")
def index(
    *,
    request: Request,
    response: Response,
    service: Running,
    caller: Reader,
    cursor: NumberCursor = None,
    limit: Limit = 50,
) -> Page[EntryView]:
    after = -1 if cursor is None else int(cursor)
    rows = select(AuditEntry).where(AuditEntry.log_index > after).order_by(AuditEntry.log_index).limit(limit + 1)
    with service.database.read() as session:
        found = session.scalars(rows.where(AuditEntry.log_index < signed_size(session))).all()
        names = {each.id: each.name for each in list_actors(session, caller.tenant_id)}
    data = [_view(entry, caller.tenant_id, names) for entry in found[:limit]]
    next_cursor = str(data[-1].index) if len(found) > limit else None
    link(request, response, next_cursor)
    return Page(data=data, next_cursor=next_cursor, has_more=next_cursor is not None)


@router.get(
    "/v1/audit-log/checkpoint",
    response_class=PlainTextResponse,
    responses=problems(404),
    summary="The signed head: a C2SP checkpoint",
)
def checkpoint(service: Running, caller: Reader) -> PlainTextResponse:  # noqa: ARG001 (the caller is checked)
    with service.database.read() as session:
        return PlainTextResponse(_head(session).note)


@router.get(
    "/v1/audit-log/proof",
    response_model=InclusionView,
    responses=problems(404),
    summary="Proof that an entry is in the log",
)
def proof(leaf: LeafHash, service: Running, caller: Reader) -> InclusionView:  # noqa: ARG001
    with service.database.read() as session:
        return inclusion(session, leaf)


@router.get(
    "/v1/audit-log/consistency",
    response_model=ConsistencyView,
    responses=problems(404),
    summary="Proof that the log only grew since an earlier head",
)
def consistency(
    service: Running,
    caller: Reader,  # noqa: ARG001
    old_size: Annotated[int, Query(ge=1, le=LARGEST_NUMBER)],
) -> ConsistencyView:
    with service.database.read() as session:
        head = _head(session)
        if old_size > head.size:
            raise ApiProblem(404, "head_not_found", "The log is not that long.")
        hashes = tree.consistency_proof(nodes(session), head.size, old_size)
    return ConsistencyView(old_size=old_size, size=head.size, hashes=_texts(hashes), checkpoint=head.note)


def inclusion(session: Session, leaf: str) -> InclusionView:
    """Return the proof for a leaf, named by its index or its hash, under the newest head. Raises ApiProblem (404)."""
    wanted = AuditEntry.leaf_hash == leaf if len(leaf) == 64 else AuditEntry.log_index == int(leaf)
    found = session.execute(select(AuditEntry.log_index, AuditEntry.leaf_hash).where(wanted)).first()
    if found is None or found[0] is None:
        raise not_found("audit_entry")
    head = _head(session)
    if found[0] >= head.size:
        raise not_found("audit_entry")
    hashes = tree.inclusion_proof(nodes(session), head.size, found[0])
    return InclusionView(
        index=found[0], size=head.size, leaf_hash=found[1], hashes=_texts(hashes), checkpoint=head.note
    )


def _head(session: Session) -> TreeHead:
    head = newest_head(session)
    if head is None:
        raise ApiProblem(404, "head_not_found", "The log has no entry yet.", headers={"Retry-After": "1"})
    return head


def _texts(hashes: list[bytes]) -> list[str]:
    return [b64encode(each).decode() for each in hashes]


def _view(entry: AuditEntry, tenant_id: str, names: dict[str, str | None]) -> EntryView:
    """Return the entry; ``names`` are those of the tenant's actors. Entries of older releases name no actor."""
    own = entry.tenant_id == tenant_id or entry.kind == ROTATED  # everybody verifies with these keys
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
