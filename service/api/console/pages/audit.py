"""``/console/audit``: the audit log's entries, whether it verifies, the proof of one entry, and the export."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import Scope
from expunge.service.api.console import views
from expunge.service.api.console.actors import actors_of
from expunge.service.api.console.render import HEADERS, PageRoute
from expunge.service.api.console.visit import Visit, Visitor
from expunge.service.api.http.pagination import NumberCursor
from expunge.service.api.problems import not_found
from expunge.service.api.routes import audit
from expunge.service.api.types import LARGEST_NUMBER
from expunge.service.audit import merkle as tree
from expunge.service.audit.signed_note import NotAuthentic, Signer
from expunge.service.audit.succession import ROTATED
from expunge.service.infra.settings import SettingsError
from expunge.service.infra.tables import AuditEntry

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ROWS = 50
_NOUNS = (
    "request", "version", "certificate", "model", "generation", "retrain", "update", "hold", "suppression", "people",
    "key", "actor", "consent", "webhook", "consumer", "log",
)  # fmt: skip
"""the first words of the entries' kinds"""


@router.get("/console/audit")
def index(
    visit: Visitor,
    before: NumberCursor = None,
    kind: Annotated[str, Query(max_length=48)] = "",
    request: Annotated[str, Query(max_length=36)] = "",
) -> Response:
    """Show the tenant's own entries, newest first. ``before``: the index that the page begins below."""
    visit.need(Scope.AUDIT_READ)
    mine = or_(AuditEntry.tenant_id == visit.caller.tenant_id, AuditEntry.kind == ROTATED)
    rows = select(AuditEntry).where(mine, AuditEntry.log_index.is_not(None))
    if before is not None:
        rows = rows.where(AuditEntry.log_index < int(before))
    if kind:
        rows = rows.where(AuditEntry.kind.startswith(f"{kind}.", autoescape=True))
    if request:
        rows = rows.where(AuditEntry.request_id == request)
    with visit.service.database.read() as session:
        found = session.scalars(rows.order_by(AuditEntry.log_index.desc()).limit(_ROWS + 1)).all()
        state = views.log_state(session)
        actors = actors_of(session, visit.caller.tenant_id, found)
    more = found[_ROWS - 1].log_index if len(found) > _ROWS else None
    chosen = {"kind": kind, "request": request}
    return visit.page(
        "audit.html", entries=found[:_ROWS], nouns=_NOUNS, chosen=chosen, more=more, state=state, actors=actors
    )


@router.get("/console/audit.jsonl")
def export(visit: Visitor) -> Response:
    """Send the whole log, an entry a line and the signed head last, as ``expunge audit export`` writes it."""
    head = visit.call(audit.checkpoint).body.decode()
    headers = HEADERS | {"Content-Disposition": 'attachment; filename="audit-log.jsonl"'}
    return StreamingResponse(_lines(visit, head), headers=headers, media_type="application/jsonl")


@router.get("/console/audit/{index}")
def show(index: Annotated[int, Path(ge=0, le=LARGEST_NUMBER)], visit: Visitor) -> Response:
    """Show an entry, and check its proof against the signed head."""
    visit.need(Scope.AUDIT_READ)
    with visit.service.database.read() as session:
        entry = session.scalar(select(AuditEntry).where(AuditEntry.log_index == index))
        if entry is None or (entry.tenant_id != visit.caller.tenant_id and entry.kind != ROTATED):
            raise not_found("audit_entry")
        proof, fault = _checked(session, visit, index)
    text = json.dumps(json.loads(entry.body), indent=2)
    return visit.page("audit_entry.html", entry=entry, text=text, proof=proof, fault=fault)


def _checked(session: Session, visit: Visit, index: int) -> tuple[audit.InclusionView, str]:
    """Return the entry's proof, and why it does not lead from the entry's text to the signed head; empty: it does."""
    proof = audit.inclusion(session, str(index))
    body = session.scalars(select(AuditEntry.body).where(AuditEntry.log_index == index)).one()
    try:
        head = Signer.of(visit.service.settings).verifier.checkpoint(proof.checkpoint)
    except (NotAuthentic, SettingsError) as error:
        return proof, str(error)
    hashes = [b64decode(each) for each in proof.hashes]
    if tree.verify_inclusion(tree.leaf_hash(body.encode()), index, head.size, hashes, head.root):
        return proof, ""
    return proof, "The entry's text and its proof do not lead to the signed head: the entry was edited or moved."


def _lines(visit: Visit, head: str) -> Iterator[str]:
    cursor: str | None = None
    while True:
        some: Any = visit.call(audit.index, cursor=cursor, limit=200)
        for entry in some.data:
            yield entry.model_dump_json() + "\n"
        cursor = some.next_cursor
        if cursor is None:
            break
    yield json.dumps({"checkpoint": head}) + "\n"
