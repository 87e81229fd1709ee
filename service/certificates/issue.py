"""Certificates of erasure: in-toto Statement v1 in a DSSE envelope, signed with Ed25519.

A certificate is issued by the scheduler, once for each completion of a request, when everything it attests has
happened: the keys of the update are destroyed and the request's audit entries are under a signed head. It is
stored then and its bytes never change. It names nobody: it commits to the subject and the samples under a salt
(the opening) that the controller got with the acceptance and that is not stored.
"""

from __future__ import annotations

import hmac
import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from service.audit import merkle as tree
from service.audit.log import canonical, newest_head, proofs, record
from service.audit.signed_note import NotAuthentic, Signer, Verifier
from service.infra.db import Database, now
from service.infra.pseudonyms import Pepper
from service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    Certificate,
    DeletionRequest,
    Erasure,
    Generation,
    Membership,
    Model,
    Removal,
    SuppressionEntry,
    Task,
    TreeHead,
    Version,
)
from service.infra.time import rfc_3339
from service.models.consumers import standing
from service.models.publications import PUBLISHING, require_published
from service.requests.intake import opening
from unlearning.accounting.certificate import Claim, Guarantee, together
from unlearning.accounting.composition import Allowance, Composition, at_limit, over_models

PAYLOAD_TYPE = "application/vnd.in-toto+json"
log = logging.getLogger(__name__)
_Part: TypeAlias = tuple[dict[str, Any], Composition | None]
"""a model's part of the certificate, and the bound over its later versions"""
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:expunge:predicate:erasure:v1"


def issue_due(database: Database, signer: Signer, pepper: Pepper, limit: int = 100) -> int:
    """Issue the certificates that can be issued now; returns how many. The scheduler calls this."""
    pending = (
        select(Certificate)
        .where(Certificate.issued_at.is_(None))
        .order_by(Certificate.refused.is_not(None), Certificate.completed_at)
        .limit(limit)
    )
    with database.read() as session:
        if session.scalar(pending) is None:
            return 0
    with database.write() as session:
        head = newest_head(session)
        rows = session.scalars(pending.with_for_update(of=Certificate)).all()
        return 0 if head is None else _issue_all(session, signer, pepper, head, rows)


@dataclass(frozen=True)
class _Finished:
    """A request that a certificate can be issued for, what carried it out, and its audit entries."""

    row: Certificate
    request: DeletionRequest
    done: list[tuple[Task, Version]]
    entries: list[AuditEntry]


def _issue_all(session: Session, signer: Signer, pepper: Pepper, head: TreeHead, rows: Sequence[Certificate]) -> int:
    """Issue those that can be; what many of them have in common is asked for once."""
    published: dict[str, list[AuditEntry]] = {}
    found = [each for row in rows if (each := _finished(session, head, row, published)) is not None]
    paths = proofs(session, head.size, [entry.log_index or 0 for each in found for entry in each.entries])
    issued = 0
    for each in found:
        try:
            envelope = _signed(session, signer, pepper, each, _audit(signer, head, each.entries, paths))
        except NotAuthentic as error:
            _refuse(session, each.row, error)
            continue
        each.row.envelope = json.dumps(envelope)
        each.row.issued_at, each.row.refused = now(session), None
        issued += 1
    return issued


def _finished(
    session: Session, head: TreeHead, row: Certificate, published: dict[str, list[AuditEntry]]
) -> _Finished | None:
    """Return None where something that the certificate attests has not happened yet."""
    request = session.get_one(DeletionRequest, row.request_id)
    if request.completed_at != row.completed_at:  # reopened since: another certificate will come
        session.delete(row)
        return None
    carried = select(Task, Version).join(Version, Version.id == Task.version_id).where(Task.request_id == request.id)
    done = [(task, version) for task, version in session.execute(carried.order_by(Task.id))]
    versions = [version for _, version in done]
    entries = _entries(session, request, versions, published)
    return _Finished(row, request, done, entries) if _ready(session, head, versions, entries) else None


def _signed(
    session: Session, signer: Signer, pepper: Pepper, finished: _Finished, audit: dict[str, Any]
) -> dict[str, Any]:
    """Return the envelope, of what the audit log says. Raises NotAuthentic, NotAuthentic; then nothing is signed."""
    for _, version in finished.done:
        require_published(session, version, finished.entries)
    envelope = sign(signer, canonical(_statement(session, pepper, finished, audit)).encode())
    verify(envelope, signer.verifier)
    return envelope


def _refuse(session: Session, row: Certificate, error: ValueError) -> None:
    """Sign nothing, say why, and say so once: the scheduler tries again each time, behind the others."""
    why = str(error)
    if row.refused != why:
        log.error("certificate refused: %s", why)
        record(session, row.tenant_id, "certificate.refused", request_id=row.request_id, what=why)
    row.refused = why


def _statement(session: Session, pepper: Pepper, finished: _Finished, audit: dict[str, Any]) -> dict[str, Any]:
    request = finished.request
    key = opening(pepper, request.salt)
    parts = [_part(session, key, request, task, version) for task, version in finished.done]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(part) for part, _ in parts],
        "predicateType": PREDICATE_TYPE,
        "predicate": _predicate(request, parts) | {"audit": audit},
    }


def _entries(
    session: Session, request: DeletionRequest, versions: list[Version], published: dict[str, list[AuditEntry]]
) -> list[AuditEntry]:
    """Return the request's own entries, and the publications that served it, which ``published`` keeps by version."""
    entries = {entry.id: entry for entry in session.scalars(select(AuditEntry).filter_by(request_id=request.id))}
    for version in versions:
        if version.id not in published:
            published[version.id] = _publications(session, version)
        entries |= {entry.id: entry for entry in published[version.id]}
    return [entries[entry_id] for entry_id in sorted(entries)]


def _publications(session: Session, version: Version) -> list[AuditEntry]:
    wanted = select(AuditEntry).where(
        AuditEntry.model_id == version.model_id,
        AuditEntry.kind.in_(PUBLISHING),
        AuditEntry.body.contains(f'"version":"{version.id}"', autoescape=True),
    )
    return list(session.scalars(wanted))


def _ready(session: Session, head: TreeHead, versions: list[Version], entries: list[AuditEntry]) -> bool:
    if any(entry.log_index is None or entry.log_index >= head.size for entry in entries):
        return False
    ids = [version.id for version in versions]
    waiting = select(Erasure.id).where(Erasure.version_id.in_(ids), Erasure.destroyed_at.is_(None)).limit(1)
    return session.scalar(waiting) is None


def _subject(part: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"{part['model']}/versions/{part['version']}", "digest": {"sha256": part["checkpoint_sha256"]}}


def _predicate(request: DeletionRequest, parts: Sequence[_Part]) -> dict[str, Any]:
    return {
        "request": request.id,
        "regulation": request.regulation,
        "received_at": _time(request.received_at),
        "due_at": _time(request.due_at),
        "first_due_at": _time(request.first_due_at),
        "extended_at": _time(request.extended_at),
        "completed_at": _time(request.completed_at),
        "models": [part for part, _ in parts],
        "together": _together(parts),
        "commitments": "HMAC-SHA-256, keyed by the opening, over canonical JSON; see service/requests/intake.py",
    }


def summed(claims: list[Claim]) -> dict[str, Any] | None:
    """Return what all models together claim for this person. mu^2 adds up; the weakest guarantee counts.

    None as soon as one of them claims nothing.
    """
    deltas = [claim.delta for claim in claims if claim.delta is not None]
    delta = min(deltas, default=None)
    total = together(claims, delta) if delta is not None else None
    if total is None:
        return None
    weakest = min((claim.guarantee for claim in claims), key=lambda guarantee: guarantee.rank)
    return {"guarantee": weakest.value, "mu": total[0], "epsilon": total[1], "delta": delta}


def _together(parts: Sequence[_Part]) -> dict[str, Any] | None:
    """Return what all models together claim for this person, for these versions and at the limit of what may come."""
    total = summed([Claim.from_json(part["claim"]) for part, _ in parts])
    return (
        None if total is None else total | {"from_these_versions_on": _shown(over_models(limit for _, limit in parts))}
    )


def _shown(limit: Composition | None) -> dict[str, Any] | None:
    """Return the bound over all versions that may still come; None: there is none."""
    if limit is None:
        return None
    words = {"statement": limit.statement, "in_plain_words": limit.in_plain_words}
    return {"guarantee": limit.guarantee.value, "mu": limit.mu, "epsilon": limit.epsilon, "delta": limit.delta} | words


def _generations(session: Session, request: DeletionRequest, version: Version) -> list[Allowance]:
    """Return the generations with versions from this one on that may have held the person.

    A retrain that began before the person asked may hold them. It forgets them before it is published, at a cost. One
    whose terms are not fixed yet has no limit.
    """
    claim = Claim.from_json(version.claim)
    own = Allowance(version.generation_id, claim.guarantee, 0 if claim.guarantee is Guarantee.EXACT else claim.limit)
    asked = select(func.max(SuppressionEntry.created_at)).where(SuppressionEntry.request_id == request.id)
    later = select(Generation).where(
        Generation.model_id == version.model_id,
        Generation.id > version.generation_id,
        Generation.status != "refused",
        Generation.created_at <= asked.scalar_subquery(),
    )
    return [own, *(_generation(each) for each in session.scalars(later.order_by(Generation.id)))]


def _generation(generation: Generation) -> Allowance:
    guarantee = Guarantee(generation.guarantee)
    return Allowance(generation.id, guarantee, 0 if guarantee is Guarantee.EXACT else generation.budget)


def _part(session: Session, key: bytes, request: DeletionRequest, task: Task, version: Version) -> _Part:
    """Return what happened in one model. Nothing in it but the commitment depends on who was forgotten."""
    model = session.get_one(Model, version.model_id)
    parent = session.get(Version, version.parent_id) if version.parent_id else None
    budget_cost = int(
        session.scalar(select(func.sum(BudgetEntry.budget_cost)).where(BudgetEntry.version_id == version.id)) or 0
    )
    spent = int(version.claim.get("spent") or 0)
    keys, destroyed_at = session.execute(
        select(func.count(), func.max(Erasure.destroyed_at)).where(Erasure.version_id == version.id)
    ).one()
    generations = _generations(session, request, version)
    limit = at_limit(generations, version.claim.get("delta"))
    part = {
        "model": model.name,
        "generation": version.generation_id,
        "version": version.number,
        "checkpoint_sha256": version.checkpoint,
        "parent": parent.number if parent else None,
        "parent_checkpoint_sha256": parent.checkpoint if parent else None,
        "method": task.method,
        "samples": task.samples,
        "reason": task.reason,
        "samples_commitment": _samples_commitment(session, key, request, version),
        "claim": version.claim,
        "as_of_version": {name: version.claim.get(name) for name in ("mu", "epsilon", "delta")},
        "generations": [each.generation for each in generations],
        "from_this_version_on": _shown(limit),
        "budget": {
            "unit": "1e-12 mu^2",
            "before": spent - budget_cost,
            "after": spent,
            "limit": version.claim.get("limit"),
        },
        "keys_destroyed_with_release": {"count": keys, "last_at": _time(destroyed_at)},
        "consumers": standing(session, model, version),
    }
    return part, limit


def _samples_commitment(session: Session, key: bytes, request: DeletionRequest, version: Version) -> str | None:
    """Return the commitment to the sorted keyed digests of the samples that this update forgot for this request.

    None: it forgot none.
    """
    named = or_(
        Membership.subject_digest == SuppressionEntry.subject_digest,
        Membership.sample_digest == SuppressionEntry.sample_digest,
    )
    samples = session.scalars(
        select(Membership.sample_digest)
        .distinct()
        .join(
            Removal,
            (Removal.generation_id == Membership.generation_id) & (Removal.position == Membership.position),
        )
        .join(SuppressionEntry, named)
        .where(
            Membership.generation_id == version.generation_id,
            Removal.version_id == version.id,
            SuppressionEntry.request_id == request.id,
        )
    ).all()
    return hmac.new(key, canonical({"samples": sorted(samples)}).encode(), "sha256").hexdigest() if samples else None


def _audit(
    signer: Signer, head: TreeHead, entries: list[AuditEntry], paths: Mapping[int, list[bytes]]
) -> dict[str, Any]:
    """Return the entries under the signed head. Of a publication only the hash is shown: its text concerns others
    too.
    """
    shown = []
    for entry in entries:
        index = entry.log_index or 0
        body = entry.body if entry.kind.startswith("request.") else None
        hashes = [b64encode(each).decode() for each in paths[index]]
        shown.append({"kind": entry.kind, "index": index, "leaf_hash": entry.leaf_hash, "body": body, "hashes": hashes})
    return {"key": str(signer.verifier), "checkpoint": head.note, "entries": shown}


def _time(at: int | None) -> str | None:
    return None if at is None else rfc_3339(at)


def sign(signer: Signer, payload: bytes) -> dict[str, Any]:
    """Return the DSSE envelope (v1) around an in-toto statement."""
    signature = signer.sign_bytes(_pae(payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": b64encode(payload).decode(),
        "signatures": [{"keyid": signer.verifier.key_id.hex(), "sig": b64encode(signature).decode()}],
    }


def verify(envelope: dict[str, Any], *verifiers: Verifier) -> dict[str, Any]:
    """Check the signature and all proofs of a certificate offline, and return its statement.

    It must be signed with one of ``verifiers``: the key in use, or one that was retired since. Raises NotAuthentic.
    """
    try:
        payload = b64decode(envelope["payload"], validate=True)
        signature = b64decode(envelope["signatures"][0]["sig"], validate=True)
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise NotAuthentic("The payload is not an in-toto statement.")
        key_id = envelope["signatures"][0]["keyid"]
        verifier = next((each for each in verifiers if each.key_id.hex() == key_id), verifiers[0])
        verifier.verify(_pae(payload), signature)
        statement: dict[str, Any] = json.loads(payload)
        if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise NotAuthentic("The statement is of another type.")
        _verify_audit(statement["predicate"]["audit"], statement["predicate"]["request"], verifier)
    except (KeyError, TypeError, IndexError, NotAuthentic) as error:
        raise NotAuthentic(f"The certificate is malformed or not signed by this key: {error}") from None
    except ValueError as error:
        raise error if isinstance(error, NotAuthentic) else NotAuthentic("The certificate is malformed.") from None
    return statement


def _verify_audit(audit: dict[str, Any], request_id: str, verifier: Verifier) -> None:
    head = verifier.checkpoint(audit["checkpoint"])
    for entry in audit["entries"]:
        leaf = bytes.fromhex(entry["leaf_hash"])
        hashes = [b64decode(each) for each in entry["hashes"]]
        if not tree.verify_inclusion(leaf, entry["index"], head.size, hashes, head.root):
            raise NotAuthentic(f"The proof of entry {entry['index']} does not lead to the signed head.")
        if entry["body"] is None:
            continue
        if tree.leaf_hash(entry["body"].encode()) != leaf or json.loads(entry["body"])["request"] != request_id:
            raise NotAuthentic(f"The text of entry {entry['index']} is not the one in the log.")
    kinds = {entry["kind"] for entry in audit["entries"]}
    if not {"request.accepted", "request.completed"} <= kinds:
        raise NotAuthentic("The certificate does not prove the request's acceptance and completion.")


def accepted_commitment(statement: dict[str, Any]) -> str:
    """Return the commitment in the acceptance's audit entry. It equals ``intake.commitment(opening, order)``."""
    entries = statement["predicate"]["audit"]["entries"]
    body = next(entry["body"] for entry in entries if entry["kind"] == "request.accepted")
    return str(json.loads(body)["commitment"])


def _pae(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
