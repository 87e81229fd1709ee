"""Continuing the audit log of a restored database from an export that is newer: no signed head is contradicted."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.audit import merkle
from expunge_service.audit.log import newest_head, recorded_at, unplace
from expunge_service.audit.signed_note import NotAuthentic, Verifier
from expunge_service.audit.succession import ROTATED, Succession, TrustedKey, predecessors
from expunge_service.audit.verification import verify
from expunge_service.infra.tables import AuditEntry, TreeHead, TreeNode

Export: TypeAlias = tuple[str, list[dict[str, Any]]]
"""the signed head, and the lines in order"""


def read_export(path: Path) -> Export:
    """Return the signed head and the lines of a file that ``expunge audit export`` wrote. Raises NotAuthentic."""
    try:
        *lines, last = (json.loads(line) for line in path.read_text().splitlines())
        return str(last["checkpoint"]), lines
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise NotAuthentic(f"{path} is not an exported log; `expunge audit export FILE` writes one.") from None


def continue_log(
    session: Session, exports: Sequence[Export], verifier: Verifier, handovers: Sequence[Succession] = ()
) -> list[dict[str, Any]]:
    """Append what the exports hold beyond the database's log; return what the added entries say, in order.

    Each export is (signed head, lines in order). A tenant's export has the text of that tenant's entries only, so give
    one for each tenant. An export of before a rotation is signed with a retired key: ``handovers`` are the rotations
    that the store holds. Raises NotAuthentic.
    """
    unplace(session)
    ours = newest_head(session)
    back = predecessors(verifier, handovers)
    keys = [TrustedKey(verifier, None), *(TrustedKey(each.retired, each.index + 1) for each in back)]
    try:
        sizes = [_size(export, keys) for export in exports]
        head, lines = _merged(exports, max(range(len(exports)), key=sizes.__getitem__))
        signed = verify(lines, head, _key(keys, head), [ours.note] if ours else [])
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


def hand_over(session: Session, verifier: Verifier, handovers: Sequence[Succession]) -> None:
    """Let the rotations wait for a place again that lead from the key of the newest head to ``verifier``.

    ``handovers``: those that the store holds. The database was put back to before the last of them.
    """
    head, back = newest_head(session), predecessors(verifier, handovers)
    if head is None:
        return
    known = set(session.scalars(select(AuditEntry.body).where(AuditEntry.kind == ROTATED)))
    for lost, key in enumerate([verifier, *(each.retired for each in back)]):
        if _signed(key, head.note):
            session.add_all(_entry(each.body) for each in reversed(back[:lost]) if each.body not in known)
            return


def _signed(key: Verifier, head: str, most: int | None = None) -> bool:
    """Return whether the key signed this head, and it is over ``most`` entries at most."""
    try:
        return key.checkpoint(head).size <= (most or sys.maxsize)
    except NotAuthentic:
        return False


def _size(export: Export, keys: Sequence[TrustedKey]) -> int:
    """Return for how many entries the export's head signs, which is how many it has. Raises NotAuthentic."""
    head, lines = export
    return verify(lines, head, _key(keys, head)).size


def _key(keys: Sequence[TrustedKey], head: str) -> Verifier:
    """Return the one of the keys that signed this head while it was in use; the one in use now otherwise."""
    return next((each.key for each in keys if _signed(each.key, head, each.most)), keys[0].key)


def _merged(exports: Sequence[Export], longest: int) -> Export:
    """Return the longest export, with the texts that the others have."""
    head, lines = exports[longest]
    texts = {line["index"]: line["body"] for _, lines in exports for line in lines if line.get("body") is not None}
    return head, [line | {"body": texts.get(line["index"])} for line in lines]


def _append(session: Session, frontier: list[bytes], added: list[dict[str, Any]], head: str) -> None:
    waiting = {row.body: row for row in session.scalars(select(AuditEntry).where(AuditEntry.log_index.is_(None)))}
    for line in added:
        row = waiting.get(line["body"]) or _entry(line["body"])
        row.log_index, row.leaf_hash = line["index"], line["leaf_hash"]
        session.add(row)
        for level, index, found in merkle.append(frontier, line["index"], bytes.fromhex(line["leaf_hash"])):
            session.add(TreeNode(level=level, index=index, hash=found.hex()))
    session.add(
        TreeHead(
            size=added[-1]["index"] + 1,
            root=merkle.root(frontier).hex(),
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
