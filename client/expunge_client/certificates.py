"""Verify a certificate of erasure offline, with the log's public key alone.

The formats are public: DSSE v1, in-toto Statement v1, the Merkle tree of RFC 6962 section 2.1, signed notes by C2SP.
docs/verify-a-certificate.md describes each. The service has another implementation; a test compares the two.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from expunge_client.errors import NotAuthentic

_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_TYPES = ("https://in-toto.io/Statement/v1", "urn:expunge:predicate:erasure:v1")
_ED25519 = b"\x01"
_MALFORMED = (KeyError, TypeError, IndexError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True)
class _Key:
    """A public key of a log: ``name+hash+base64``."""

    name: str
    id: bytes
    public: bytes

    @classmethod
    def parse(cls, text: str) -> _Key:
        name, _, rest = text.strip().partition("+")
        key_hash, _, encoded = rest.partition("+")
        raw = _decoded(encoded)
        found = hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4]
        if not name or len(raw) != 33 or raw[:1] != _ED25519 or found.hex() != key_hash:
            raise NotAuthentic("The public key is not of the form name+hash+base64, or its hash does not fit.")
        return cls(name, found, raw[1:])

    def check(self, data: bytes, signature: bytes) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, data)
        except InvalidSignature:
            raise NotAuthentic("The signature is not valid.") from None

    def head(self, note: str) -> tuple[int, bytes]:
        """Return size and root (32 bytes) of the signed tree head."""
        text, found, lines = note.rpartition("\n\n")
        signed = [line.split(" ") for line in lines.split("\n")[:-1]] if found else []
        for dash, name, signature in (parts[:3] for parts in signed if len(parts) >= 3):
            raw = _decoded(signature)
            if (dash, name, raw[:4]) == ("\u2014", self.name, self.id):
                self.check(f"{text}\n".encode(), raw[4:])
                break
        else:
            raise NotAuthentic("The tree head is not signed by this key.")
        origin, size, root, *_ = [*text.split("\n"), "", ""]
        if origin != self.name or not size.isdigit() or str(int(size)) != size or len(_decoded(root)) != 32:
            raise NotAuthentic("What is signed is not a tree head of this log.")
        return int(size), _decoded(root)


def verify_certificate(
    certificate: str | bytes | Mapping[str, Any],
    *keys: str,
    opening: str | None = None,
    subject_id: str | None = None,
    subject_ids: Sequence[str] | None = None,
    sample_ids: Sequence[str] | None = None,
    case_id: str | None = None,
) -> dict[str, Any]:
    """Verify the signature and the proofs of a certificate, and return its statement.

    ``keys`` are the log's public key (``log.vkey``) and any that it has retired. Get them another way than the
    certificate: one that brings its own key proves nothing. ``opening`` with ``subject_id``, ``subject_ids`` or
    ``sample_ids``, and with the ``case_id`` if there was one, checks as well whom the certificate is about. That the
    claim itself is true is not checked; its guarantee says what it depends on.

    Raises:
        NotAuthentic: something does not fit; the message says what.
        ValueError: no key was given, or an opening without a name, or a name without an opening.
    """
    if not keys:
        raise ValueError("Give the log's public key: verify_certificate(certificate, key).")
    names = [each for each in (subject_id, subject_ids, sample_ids) if each is not None]
    if len(names) != (opening is not None):
        raise ValueError("An opening opens one name: give it with subject_id, subject_ids or sample_ids.")
    parsed = [_Key.parse(key) for key in keys]
    try:
        envelope = certificate if isinstance(certificate, Mapping) else json.loads(certificate)
        statement = _statement(envelope, parsed)
        if opening is not None:
            people = sorted(
                {normalize("NFC", each) for each in ([subject_id] if subject_id is not None else subject_ids or ())}
            )
            samples = [normalize("NFC", each) for each in sample_ids or ()]  # the service compares ids in this form
            _check_opening(statement, bytes.fromhex(opening), people, samples, case_id)
    except NotAuthentic:
        raise
    except _MALFORMED as error:
        raise NotAuthentic(f"The certificate is malformed ({type(error).__name__}).") from None
    return statement


def _statement(envelope: Mapping[str, Any], keys: Sequence[_Key]) -> dict[str, Any]:
    payload = _decoded(envelope["payload"])
    signed = envelope["signatures"][0]
    if envelope["payloadType"] != _PAYLOAD_TYPE:
        raise NotAuthentic("The payload is not an in-toto statement.")
    key = next((each for each in keys if each.id.hex() == signed["keyid"]), keys[0])
    kind = _PAYLOAD_TYPE.encode()
    key.check(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload), _decoded(signed["sig"]))
    statement: dict[str, Any] = json.loads(payload)
    if (statement["_type"], statement["predicateType"]) != _TYPES:
        raise NotAuthentic("The statement is of another type.")
    _check_audit(statement["predicate"]["audit"], statement["predicate"]["request"], key)
    return statement


def _check_audit(audit: Mapping[str, Any], request_id: str, key: _Key) -> None:
    """Check that each entry lies under the signed head, and that acceptance and completion are among them."""
    size, root = key.head(audit["checkpoint"])
    for entry in audit["entries"]:
        leaf, index = bytes.fromhex(entry["leaf_hash"]), entry["index"]
        hashes = [_decoded(each) for each in entry["hashes"]]
        if not 0 <= index < size or _root(leaf, index, size, hashes) != root:
            raise NotAuthentic(f"The proof of entry {index} does not lead to the signed head.")
        body = entry["body"]
        if body is None:
            continue
        if hashlib.sha256(b"\x00" + body.encode()).digest() != leaf or json.loads(body)["request"] != request_id:
            raise NotAuthentic(f"The text of entry {index} is not the one in the log.")
    if not {"request.accepted", "request.completed"} <= {entry["kind"] for entry in audit["entries"]}:
        raise NotAuthentic("The certificate does not prove the request's acceptance and completion.")


def _root(leaf: bytes, index: int, size: int, hashes: Sequence[bytes]) -> bytes | None:
    """Return the root that the proof leads to (RFC 6962, 2.1.1, read backwards); None for one of a wrong length."""
    if size == 1:
        return leaf if not hashes else None
    if not hashes:
        return None
    split = 1 << (size - 1).bit_length() - 1
    *below, sibling = hashes
    on_the_left = index < split
    inner = _root(leaf, index, split, below) if on_the_left else _root(leaf, index - split, size - split, below)
    if inner is None:
        return None
    return hashlib.sha256(b"\x01" + (inner + sibling if on_the_left else sibling + inner)).digest()


def _check_opening(
    statement: Mapping[str, Any], opening: bytes, people: Sequence[str], samples: Sequence[str], case_id: str | None
) -> None:
    named: dict[str, Any] = {"samples": sorted(samples)}
    if people:
        named = {"subject": people[0]} if len(people) == 1 else {"subjects": list(people)}
    if case_id is not None:
        named["case"] = case_id
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    expected = hmac.new(opening, text.encode(), "sha256").hexdigest()
    entries = statement["predicate"]["audit"]["entries"]
    body = next(entry["body"] for entry in entries if entry["kind"] == "request.accepted")
    if not hmac.compare_digest(str(json.loads(body)["commitment"]), expected):
        raise NotAuthentic("The certificate is not about whom you named, or the opening is another request's.")


def _decoded(text: str) -> bytes:
    """Return the bytes; none where the text is no base64, or not the one that these bytes have."""
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        return b""
    return raw if b64encode(raw).decode() == text else b""
