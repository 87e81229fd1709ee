"""Continuing the audit log of a restored database from an export that is newer: no signed head is contradicted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.audit import merkle as tree
from service.audit.log import newest_head, recorded_at, unplace
from service.audit.signed_note import NotAuthentic, Verifier
from service.audit.verify import verify
from service.infra.tables import AuditEntry, TreeHead, TreeNode


def read_export(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the signed head and the lines of a file that ``expunge audit export`` wrote. Raises NotAuthentic."""
    try:
        *lines, last = (json.loads(line) for line in path.read_text().splitlines())
        return str(last["checkpoint"]), lines
    except (OSError, ValueError, LookupError, TypeError):
        raise NotAuthentic(f"{path} is not an exported log; `expunge audit export FILE` writes one.") from None


def continue_log(
    session: Session, exports: Sequence[tuple[str, list[dict[str, Any]]]], verifier: Verifier
) -> list[dict[str, Any]]:
    """Append what the exports hold beyond the database's log; return what the added entries say, in order.

    Each export is (signed head, lines in order). A tenant's export has the text of that tenant's entries only, so give
    one for each tenant. Raises NotAuthentic.
    """
    head, lines = _merged(exports)
    unplace(session)
    ours = newest_head(session)
    try:
        signed = verify(lines, head, verifier, [ours.note] if ours else [])
    except NotAuthentic as error:
        raise NotAuthentic(f"The export does not continue the database's log. {error}") from None
    size = ours.size if ours else 0
    added = lines[size : signed.size]
    for line in added:
        if line["body"] is None:
            what = f"Entry {line['index']} belongs to another tenant, whose export is missing."
            raise NotAuthentic(f"{what} Give an export for each tenant with --log.")
    if added:
        _append(session, [bytes.fromhex(each) for each in ours.frontier] if ours else [], added, head)
    return [json.loads(line["body"]) for line in added]


def _merged(exports: Sequence[tuple[str, list[dict[str, Any]]]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the longest export, with the texts that the others have."""
    head, longest = max(exports, key=lambda each: len(each[1]))
    texts = {line["index"]: line["body"] for _, lines in exports for line in lines if line.get("body") is not None}
    return head, [line | {"body": texts.get(line["index"])} for line in longest]


def _append(session: Session, frontier: list[bytes], added: list[dict[str, Any]], head: str) -> None:
    waiting = {row.body: row for row in session.scalars(select(AuditEntry).where(AuditEntry.log_index.is_(None)))}
    for line in added:
        row = waiting.get(line["body"]) or _entry(line["body"])
        row.log_index, row.leaf_hash = line["index"], line["leaf_hash"]
        session.add(row)
        for level, index, found in tree.append(frontier, line["index"], bytes.fromhex(line["leaf_hash"])):
            session.add(TreeNode(level=level, index=index, hash=found.hex()))
    session.add(
        TreeHead(
            size=added[-1]["index"] + 1,
            root=tree.root(frontier).hex(),
            frontier=[each.hex() for each in frontier],
            note=head,
            created_at=recorded_at(session),
        )
    )
    session.flush()


def _entry(text: str) -> AuditEntry:
    body = json.loads(text)
    return AuditEntry(
        tenant_id=body["tenant"],
        kind=body["kind"],
        request_id=body["request"],
        model_id=body["model"],
        body=text,
        created_at=body["at"],
    )
