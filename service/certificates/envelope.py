"""The envelope of a certificate: in-toto Statement v1 under DSSE, signed with Ed25519; and its check, offline.

What is signed here is checked here before it is kept. Others verify with ``expunge_client.certificates`` or
``examples/verify.py``, which also compare the claim with an exported log. The three share no code.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from expunge.service.audit import ExportedEntry, NotAuthentic, Signer, Verifier, decoded, verify_inclusion

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:expunge:predicate:erasure:v2"
"""the format of new certificates"""
FORMATS = ("urn:expunge:predicate:erasure:v1", PREDICATE_TYPE)
"""every format that was ever issued. With v1 the log had no entry ``certificate.issued`` yet"""
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
    claims is not compared with the log: the client does. Raises NotAuthentic.
    """
    try:
        payload = decoded(envelope["payload"])
        signature = decoded(envelope["signatures"][0]["sig"])
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise NotAuthentic("The payload is not an in-toto statement.")
        key_id = envelope["signatures"][0]["keyid"]
        verifier = next((each for each in verifiers if each.key_id.hex() == key_id), verifiers[0])
        verifier.verify(_pae(payload), signature)
        statement: dict[str, Any] = json.loads(payload.decode())
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


def _subject(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"{part['model']}/versions/{part['version']}", "digest": {"sha256": part["checkpoint_sha256"]}}


def _verify_audit(audit: dict[str, Any], request_id: str, verifier: Verifier) -> None:
    head = verifier.checkpoint(audit["checkpoint"])
    told = set()
    for entry in audit["entries"]:
        shown = ExportedEntry.parse(entry)
        hashes = [decoded(each) for each in entry["hashes"]]
        if not verify_inclusion(shown.leaf, shown.index, head.size, hashes, head.root):
            raise NotAuthentic(f"The proof of entry {shown.index} does not lead to the signed head.")
        if shown.body is None:
            continue
        body = json.loads(shown.body)
        if (body["kind"], body["request"]) != (entry["kind"], request_id):
            raise NotAuthentic(f"The text of entry {shown.index} is of another kind, or of another request.")
        told.add(body["kind"])
    if not {"request.accepted", "request.completed"} <= told:
        raise NotAuthentic("The certificate does not prove the request's acceptance and completion.")


def _pae(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
