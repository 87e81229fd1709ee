"""The envelope of a certificate: in-toto Statement v1 under DSSE, signed with Ed25519; and its check, offline.

Two more verifiers judge certificates: ``expunge_client.certificates`` and ``examples/verify.py``. They share no code,
and ``tests/service/test_verifiers.py`` holds that they say the same of every certificate, log and export.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from expunge.service.audit import merkle as tree
from expunge.service.audit.signed_note import NotAuthentic, Signer, Verifier, decoded
from expunge.service.audit.verify import ExportedEntry, keys_in
from expunge.service.audit.verify import verify as verify_log
from expunge.service.models.publications import PUBLISHING, says_claim

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:expunge:predicate:erasure:v2"
"""the format of new certificates"""
FORMATS = ("urn:expunge:predicate:erasure:v1", PREDICATE_TYPE)
"""every format that was ever issued. With v1 the log had no entry of kind ``ISSUED`` yet"""
ISSUED = "certificate.issued"
"""the entry that holds the digest of a certificate's payload"""
_MALFORMED = (KeyError, TypeError, IndexError, ValueError, AttributeError, RecursionError)


def sign(signer: Signer, payload: bytes) -> dict[str, Any]:
    """Return the DSSE envelope (v1) around an in-toto statement."""
    signature = signer.sign_bytes(_pae(payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": b64encode(payload).decode(),
        "signatures": [{"keyid": signer.verifier.key_id.hex(), "sig": b64encode(signature).decode()}],
    }


def payload_digest(envelope: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the signed bytes, in lower-case hex."""
    return hashlib.sha256(decoded(envelope["payload"])).hexdigest()


def verify(envelope: dict[str, Any], *verifiers: Verifier) -> dict[str, Any]:
    """Check the signature and all proofs of a certificate offline, and return its statement.

    It must be signed with one of ``verifiers``: the key in use, or one that was retired since. What the statement
    claims is not compared with the log: ``verify_with_log`` does. Raises NotAuthentic.
    """
    try:
        payload = decoded(envelope["payload"])
        signature = decoded(envelope["signatures"][0]["sig"])
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise NotAuthentic("The payload is not an in-toto statement.")
        key_id = envelope["signatures"][0]["keyid"]
        verifier = next((each for each in verifiers if each.key_id.hex() == key_id), verifiers[0])
        verifier.verify(_pae(payload), signature)
        statement: dict[str, Any] = json.loads(payload)
        if statement["_type"] != STATEMENT_TYPE:
            raise NotAuthentic("The payload is not an in-toto statement of version 1.")
        if statement["predicateType"] not in FORMATS:
            told = f"The certificate has the format {statement['predicateType']!r}; known are {', '.join(FORMATS)}."
            raise NotAuthentic(f"{told} A newer release may know it.")
        predicate = statement["predicate"]
        if statement["subject"] != [_subject(part) for part in predicate["models"]]:
            raise NotAuthentic("The files that the statement is about are not those of its models.")
        _verify_audit(predicate["audit"], predicate["request"], verifier)
    except NotAuthentic:
        raise
    except _MALFORMED as error:
        raise NotAuthentic(f"The certificate is malformed: {error!r}") from None
    return statement


def verify_with_log(
    envelope: dict[str, Any], head: str, lines: Iterable[dict[str, Any]], verifier: Verifier
) -> dict[str, Any]:
    """Check a certificate as ``verify`` does, and that an exported log says what it says. Return its statement.

    ``head`` and ``lines`` are the export, ``verifier`` is the log's key. Keys that the log retired are believed for
    heads of their time. Raises NotAuthentic.
    """
    lines = list(lines)
    statement = verify(envelope, *(each.key for each in keys_in(lines, verifier)))
    try:
        verify_log(lines, head, verifier, [statement["predicate"]["audit"]["checkpoint"]])
    except NotAuthentic as error:
        raise NotAuthentic(f"The audit log does not verify, or not with this certificate. {error}") from None
    try:
        _compare(statement, payload_digest(envelope), [ExportedEntry.parse(line).body for line in lines])
    except NotAuthentic:
        raise
    except _MALFORMED as error:
        raise NotAuthentic(f"The certificate is malformed: {error!r}") from None
    return statement


def _subject(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"{part['model']}/versions/{part['version']}", "digest": {"sha256": part["checkpoint_sha256"]}}


def _verify_audit(audit: dict[str, Any], request_id: str, verifier: Verifier) -> None:
    head = verifier.checkpoint(audit["checkpoint"])
    told = set()
    for entry in audit["entries"]:
        shown = ExportedEntry.parse(entry)
        hashes = [decoded(each) for each in entry["hashes"]]
        if not tree.verify_inclusion(shown.leaf, shown.index, head.size, hashes, head.root):
            raise NotAuthentic(f"The proof of entry {shown.index} does not lead to the signed head.")
        if shown.body is None:
            continue
        body = json.loads(shown.body)
        if (body["kind"], body["request"]) != (entry["kind"], request_id):
            raise NotAuthentic(f"The text of entry {shown.index} is of another kind, or of another request.")
        told.add(body["kind"])
    if not {"request.accepted", "request.completed"} <= told:
        raise NotAuthentic("The certificate does not prove the request's acceptance and completion.")


def _compare(statement: Mapping[str, Any], digest: str, texts: list[str | None]) -> None:
    """Compare what the statement says with what the log's entries say. Raises NotAuthentic."""
    predicate, recorded = statement["predicate"], statement["predicateType"] == PREDICATE_TYPE
    published = []
    for entry in predicate["audit"]["entries"]:
        text = texts[entry["index"]]
        if text is None:
            what = f"The export hides the text of entry {entry['index']}, which the certificate needs."
            raise NotAuthentic(f"{what} Is it another tenant's?")
        body = json.loads(text)
        if body["kind"] != entry["kind"]:
            raise NotAuthentic(f"Entry {entry['index']} is of another kind in the log.")
        if body["kind"] in PUBLISHING:
            published.append(body)
    for part in predicate["models"]:
        wanted = part["checkpoint_sha256"], part["generation"], part["version"]
        said = next(
            (each for each in published if (each["checkpoint"], each["generation"], each["number"]) == wanted), None
        )
        name = f"version {part['version']} of {part['model']}"
        if said is None:
            raise NotAuthentic(f"The log has no entry that publishes {name} with this checkpoint.")
        if not says_claim(said, part["claim"]):
            raise NotAuthentic(f"The entry that publishes {name} holds another claim.")
        # before v2 a model without a sample of the request was shown with the policy's method, which did nothing there
        if said["method"] != part["method"] and (recorded or part["samples"]):
            raise NotAuthentic(f"The entry that publishes {name} names another method.")
    if recorded and not any(_issues(text, predicate["request"], digest) for text in texts):
        what = "The log has no entry that this certificate was issued."
        raise NotAuthentic(f"{what} Was the log exported before it? Export it again.")


def _issues(text: str | None, request_id: str, digest: str) -> bool:
    if text is None or digest not in text:
        return False
    body = json.loads(text)
    return [body.get(name) for name in ("kind", "request", "payload_sha256")] == [ISSUED, request_id, digest]


def accepted_commitment(statement: dict[str, Any]) -> str:
    """Return the commitment in the acceptance's audit entry. It equals ``intake.commitment(opening, order)``."""
    entries = statement["predicate"]["audit"]["entries"]
    body = next(entry["body"] for entry in entries if entry["kind"] == "request.accepted" and entry["body"] is not None)
    return str(json.loads(body)["commitment"])


def _pae(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
