"""The envelope of a certificate: in-toto Statement v1 under DSSE, signed with Ed25519; and its check, offline.

What is signed here is checked here before it is kept. Others verify with ``expunge_client.certificates`` or
``examples/verify.py``, which also compare the claim with an exported log. The three share no code.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from itertools import accumulate, chain
from math import isfinite
from typing import Any

from expunge_service.audit import ExportedEntry, NotAuthentic, Signer, Verifier, decoded, verify_inclusion

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:expunge:predicate:erasure:v2"
"""the format of new certificates"""
FORMATS = ("urn:expunge:predicate:erasure:v1", PREDICATE_TYPE)
"""every format that was ever issued. With v1 the log had no entry ``certificate.issued`` yet"""
_MALFORMED = (KeyError, TypeError, IndexError, ValueError, AttributeError)
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{}]')
"""a bracket, or a text that may hold some"""
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_LEVELS = 100


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
        statement: dict[str, Any] = parsed(payload)
        if statement["_type"] != STATEMENT_TYPE:
            raise NotAuthentic("The payload is not an in-toto statement of version 1.")
        if statement["predicateType"] not in FORMATS:
            told = f"The certificate has the format {statement['predicateType']!r}; known are {', '.join(FORMATS)}."
            raise NotAuthentic(f"{told} A newer release may know it.")
        predicate = statement["predicate"]
        _require_types(predicate)
        if statement["subject"] != [_subject(part) for part in predicate["models"]]:
            raise NotAuthentic("The files that the statement is about are not those of its models.")
        if not all(_is_covered(part.get("claim")) for part in predicate["models"]):
            raise NotAuthentic("A claim says more than the walls of its world: exact needs the operator's word there.")
        _verify_audit(predicate["audit"], predicate["request"], verifier)
    except NotAuthentic:
        raise
    except _MALFORMED as error:
        raise NotAuthentic(f"The certificate is malformed: {error!r}") from None
    return statement


def parsed(raw: str | bytes) -> Any:
    """Read strict JSON: UTF-8, finite numbers, whole letters, at most 100 levels. Raises ValueError for any other."""
    text = raw if isinstance(raw, str) else raw.decode()
    if max(accumulate(_STEP.get(each, 0) for each in _BRACKET.findall(text)), default=0) > _LEVELS:
        raise ValueError(f"The JSON has more than {_LEVELS} levels.")
    value = json.loads(text, parse_int=_finite, parse_float=_finite, parse_constant=_finite)
    json.dumps(value, ensure_ascii=False).encode()  # half a letter has no bytes
    return value


def _finite(text: str) -> int | float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("The JSON has a number that is not finite.")
    return number if set(text) & set(".eE") else int(text)


def _require_types(predicate: Mapping[str, Any]) -> None:
    """Check what is text, what a list, and what a whole number below 2^53. Raises NotAuthentic."""
    models, entries = predicate["models"], predicate["audit"]["entries"]
    hashes = [each["hashes"] for each in entries]
    texts = [part[name] for part in models for name in ("model", "checkpoint_sha256")]
    texts += [predicate["request"], *(each["kind"] for each in entries), *chain(*hashes)]
    numbers = [*(part["version"] for part in models), *(each["index"] for each in entries)]
    well = all(type(each) is list for each in (models, entries, *hashes)) and all(type(each) is str for each in texts)
    if not well or any(type(each) is not int or abs(each) >= 1 << 53 for each in numbers):
        raise NotAuthentic("A text, a number or a list of the certificate is of another type.")


def _is_covered(claim: object) -> bool:
    """Return whether a claim says no more than its world: that holds where it has none."""
    if not isinstance(claim, Mapping) or claim.get("world") is None:
        return True
    record = claim["world"] if isinstance(claim["world"], Mapping) else {}
    readers = record.get("own_readers")
    shown = record.get("walls") == "new root" and type(readers) is int and readers == 0
    word = shown or claim.get("operators_word") is True
    exact = "exact" in (claim.get("guarantee"), claim.get("basis"))
    return (word or not exact) and (claim.get("deterministic") is not True or record.get("repeats") is True)


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
        body = parsed(shown.body)
        if (body["kind"], body["request"]) != (entry["kind"], request_id):
            raise NotAuthentic(f"The text of entry {shown.index} is of another kind, or of another request.")
        told.add(body["kind"])
    if not {"request.accepted", "request.completed"} <= told:
        raise NotAuthentic("The certificate does not prove the request's acceptance and completion.")


def _pae(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
