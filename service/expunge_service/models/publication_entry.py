"""What the audit log says of a published version, and where the database says something else.

The entry that publishes a version holds the digests of its claim and of its file. A row that is edited later does not
change the entry, for the entry is under the log's signed head: so no claim is signed that the entry does not make.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import rfc8785
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.audit import NotAuthentic, canonical, leaf_hash
from expunge_service.infra.tables import AuditEntry, BudgetEntry, Version

PUBLISHED, RESTORED = "version.published", "version.restored"
PUBLISHING = (PUBLISHED, RESTORED)
"""the kinds of the entries that publish a version: by a worker, and by a restore that adopts an update"""


def claim_digest(claim: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the claim as canonical JSON (RFC 8785), in lower-case hex.

    Every number is a double, as JSON has it elsewhere: any language gives the same digest. Raises ValueError for one
    that is not finite, and for text that is no Unicode.
    """
    doubles = json.loads(json.dumps(claim), parse_int=float)
    return hashlib.sha256(rfc8785.dumps(doubles)).hexdigest()


def says_claim(body: Mapping[str, Any], claim: Mapping[str, Any]) -> bool:
    """Return whether the entry that publishes a version holds the digest of this claim.

    Entries of before RFC 8785 hold that of Python's own canonical JSON.
    """
    of_before = hashlib.sha256(canonical(dict(claim)).encode()).hexdigest()
    return body.get("claim_sha256") in (claim_digest(claim), of_before)


def facts_of(version: Version, parent: Version | None, budget_cost: int) -> dict[str, Any]:
    """Return the facts of the entry that publishes ``version``. ``budget_cost``: units of 1e-12 mu^2."""
    return {
        "version": version.id,
        "number": version.number,
        "parent": None if parent is None else parent.id,
        "parent_checkpoint": None if parent is None else parent.checkpoint,
        "checkpoint": version.checkpoint,
        "state": version.state,
        "commitments": version.commitments,
        "generation": version.generation_id,
        "budget_cost": budget_cost,
        "method": version.method,
        "claim_sha256": claim_digest(version.claim),
    }


def require_published(session: Session, version: Version, entries: Iterable[AuditEntry]) -> None:
    """Check that the entry that publishes the version says what the database says. Raises NotAuthentic."""
    name = f"version {version.number} of generation {version.generation_id}"
    bodies = [body_of(entry) for entry in entries if entry.kind in PUBLISHING]
    body = next((each for each in bodies if each.get("version") == version.id), None)
    if body is None:
        raise NotAuthentic(f"The audit log has no entry that publishes {name}.")
    parent = session.get(Version, version.parent_id) if version.parent_id else None
    charged = select(func.sum(BudgetEntry.budget_cost)).where(BudgetEntry.version_id == version.id)
    facts = facts_of(version, parent, int(session.scalar(charged) or 0))
    wrong = {fact for fact, value in facts.items() if fact not in body or body[fact] != value}
    if says_claim(body, version.claim):
        wrong.discard("claim_sha256")
    if version.commitments is None:  # a release before 0.3 wrote the entry
        wrong -= {"state", "commitments"} - body.keys()
    if wrong:
        raise NotAuthentic(f"The audit log and the database differ on {name}: {', '.join(sorted(wrong))}.")


def compare_shown(entries: Iterable[Mapping[str, Any]], versions: Collection[Mapping[str, Any]]) -> int:
    """Compare versions as the API shows them with exported entries; return how many were compared.

    Raises NotAuthentic. A version is identified by its generation and number: a generation belongs to one model.
    """
    said = _said(entries)
    for version in versions:
        name = f"version {version['number']} of {version['model']}"
        body = said.get((version["generation"], version["number"]))
        if body is None:
            raise NotAuthentic(f"The audit log has no entry that publishes {name}.")
        shown = {"checkpoint": version["checkpoint_sha256"], "method": version["method"]}
        wrong = [fact for fact, value in shown.items() if body.get(fact) != value]
        wrong += [] if says_claim(body, version["claim"]) else ["claim_sha256"]
        if wrong:
            raise NotAuthentic(f"The audit log and the database differ on {name}: {', '.join(sorted(wrong))}.")
    return len(versions)


def unlogged(entries: Iterable[Mapping[str, Any]], versions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those of these versions that no exported entry publishes."""
    said = _said(entries)
    return [version for version in versions if (version["generation"], version["number"]) not in said]


def _said(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Return what the exported entries say of each version, by its generation and number."""
    bodies = (json.loads(entry["body"]) for entry in entries if entry["body"])
    return {(body["generation"], body["number"]): body for body in bodies if body["kind"] in PUBLISHING}


def body_of(entry: AuditEntry) -> dict[str, Any]:
    """Return what the entry says. Raises NotAuthentic where its text does not have the hash that is in the log."""
    if leaf_hash(entry.body.encode()).hex() != entry.leaf_hash:
        raise NotAuthentic(f"The text of audit entry {entry.log_index} does not have the hash that is in the log.")
    body: dict[str, Any] = json.loads(entry.body)
    return body
