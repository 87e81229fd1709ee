"""``/console/audit``: the audit log's entries, whether it verifies, the proof of one entry, and the export."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from expunge_service.access import Scope
from expunge_service.api.http.pagination import NumberCursor
from expunge_service.api.routes import audit
from expunge_service.api.types import LARGEST_NUMBER
from expunge_service.api.views.log import InclusionView, actors_of, inclusion, log_state, own_entries, own_entry
from expunge_service.audit import NotAuthentic, Signer, leaf_hash, verify_inclusion
from expunge_service.console.render import HEADERS, PageRoute
from expunge_service.console.visit import PageContext, Visitor
from expunge_service.infra.settings import SettingsError

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ROWS = 50
_NOUNS = (
    "request", "version", "certificate", "model", "generation", "retrain", "update", "preparation",
    "hold", "suppression", "people", "key", "keys", "actor", "consent", "webhook", "consumer", "log",
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
    tenant = visit.caller.tenant_id
    with visit.service.database.read() as session:
        found = own_entries(
            session,
            tenant,
            before=None if before is None else int(before),
            kind=kind,
            request=request,
            limit=_ROWS + 1,
        )
        state = log_state(session)
        actors = actors_of(session, tenant, found)
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
        entry = own_entry(session, visit.caller.tenant_id, index)
        proof = inclusion(session, str(index))
    fault = _fault_of(visit, proof, entry.body)
    text = json.dumps(json.loads(entry.body), indent=2)
    return visit.page("audit_entry.html", entry=entry, text=text, proof=proof, fault=fault)


def _fault_of(visit: PageContext, proof: InclusionView, body: str) -> str:
    """Return why the proof does not lead from the entry's text to the signed head; empty: it does."""
    try:
        head = Signer.of(visit.service.settings).verifier.checkpoint(proof.checkpoint)
    except (NotAuthentic, SettingsError) as error:
        return str(error)
    hashes = [b64decode(each) for each in proof.hashes]
    if verify_inclusion(leaf_hash(body.encode()), proof.index, head.size, hashes, head.root):
        return ""
    return "The entry's text and its proof do not lead to the signed head: the entry was edited or moved."


def _lines(visit: PageContext, head: str) -> Iterator[str]:
    cursor: str | None = None
    while True:
        some: Any = visit.call(audit.index, cursor=cursor, limit=200)
        for entry in some.data:
            yield entry.model_dump_json(exclude={"actor_name"}) + "\n"  # a name can be erased here, and not in files
        cursor = some.next_cursor
        if cursor is None:
            break
    yield json.dumps({"checkpoint": head}) + "\n"
