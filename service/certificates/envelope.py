"""The envelope of a certificate: in-toto Statement v1 under DSSE, signed with Ed25519; and its check, offline."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from service.audit import merkle as tree
from service.audit.signed_note import NotAuthentic, Signer, Verifier, decoded

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:expunge:predicate:erasure:v1"


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
        payload = decoded(envelope["payload"])
        signature = decoded(envelope["signatures"][0]["sig"])
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise NotAuthentic("The payload is not an in-toto statement.")
        key_id = envelope["signatures"][0]["keyid"]
        verifier = next((each for each in verifiers if each.key_id.hex() == key_id), verifiers[0])
        verifier.verify(_pae(payload), signature)
        statement: dict[str, Any] = json.loads(payload)
        if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise NotAuthentic("The statement is of another type.")
        _verify_audit(statement["predicate"]["audit"], statement["predicate"]["request"], verifier)
    except NotAuthentic:
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise NotAuthentic(f"The certificate is malformed: {error!r}") from None
    return statement


def _verify_audit(audit: dict[str, Any], request_id: str, verifier: Verifier) -> None:
    head = verifier.checkpoint(audit["checkpoint"])
    for entry in audit["entries"]:
        leaf = bytes.fromhex(entry["leaf_hash"])
        hashes = [decoded(each) for each in entry["hashes"]]
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
