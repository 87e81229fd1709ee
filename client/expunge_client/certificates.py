"""Verify a certificate of erasure offline, with the log's public key, and with an exported log what it claims.

The formats are public: DSSE v1, in-toto Statement v1, the Merkle tree of RFC 6962 section 2.1, signed notes by C2SP,
canonical JSON of RFC 8785. docs/verify.md describes each. The service has another implementation; a test
compares the two.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, chain
from math import isfinite
from typing import Any
from unicodedata import normalize

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from expunge_client.errors import NotAuthentic

_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_OLD, _NEW = "urn:expunge:predicate:erasure:v1", "urn:expunge:predicate:erasure:v2"
_LINEAGE = "lineage"
"""what certificates and logs until 22 November 2026 call a generation"""
_ED25519 = b"\x01"
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_ROTATED = "log.key_rotated"
_MALFORMED = (KeyError, TypeError, IndexError, ValueError, AttributeError, RecursionError)
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{}]')
"""a bracket, or a text that may hold some"""
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_LEVELS = 100


@dataclass(frozen=True)
class LogKey:
    """A public key of a log: ``name+hash+base64``."""

    name: str
    id: bytes
    public: bytes

    @classmethod
    def parse(cls, text: str) -> LogKey:
        name, _, rest = text.strip(" \t\r\n").partition("+")
        key_hash, _, encoded = rest.partition("+")
        raw = _decoded(encoded)
        found = hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4]
        if not name or len(raw) != 33 or raw[:1] != _ED25519 or found.hex() != key_hash:
            raise NotAuthentic("The public key is not of the form name+hash+base64, or its hash does not fit.")
        return cls(name, found, raw[1:])

    @property
    def fingerprint(self) -> str:
        """Return 32 hex digits to compare on paper, as letters print them: half of the SHA-256 of the key's text."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:32]

    def check(self, data: bytes, signature: bytes) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, data)
        except InvalidSignature:
            raise NotAuthentic("The signature is not valid.") from None

    def _open(self, note: str) -> str:
        """Return what the note says. Raises NotAuthentic where this key did not sign it."""
        text, found, lines = note.rpartition("\n\n")
        signed = [line.split(" ") for line in lines.split("\n")[:-1]] if found else []
        for dash, name, signature in (parts[:3] for parts in signed if len(parts) >= 3):
            raw = _decoded(signature)
            if (dash, name, raw[:4]) == ("\u2014", self.name, self.id):
                self.check(f"{text}\n".encode(), raw[4:])
                return text
        raise NotAuthentic("The tree head is not signed by this key.")

    def head(self, note: str) -> tuple[int, bytes]:
        """Return size and root (32 bytes) of the signed tree head."""
        text = self._open(note)
        origin, size, root, *_ = [*text.split("\n"), "", ""]
        if origin != self.name or not _SIZE.fullmatch(size) or len(_decoded(root)) != 32:
            raise NotAuthentic("What is signed is not a tree head of this log.")
        return int(size), _decoded(root)

    def signed(self, note: object, text: str) -> bool:
        """Return whether this is the key's note of exactly this text."""
        if not isinstance(note, str) or note.rpartition("\n\n")[0] + "\n" != text:
            return False
        try:
            self._open(note)
        except NotAuthentic:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{b64encode(_ED25519 + self.public).decode()}"


@dataclass(frozen=True)
class _Entry:
    """An entry of the log: its place, its leaf's hash (32 bytes), and its exact text, where that is shown."""

    index: int
    leaf: bytes
    text: str | None

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> _Entry:
        index, leaf, text = line["index"], bytes.fromhex(line["leaf_hash"]), line["body"]
        if type(index) is not int or leaf.hex() != line["leaf_hash"] or len(leaf) != 32:
            raise NotAuthentic("An entry's index or hash is malformed.")
        if text is not None and hashlib.sha256(b"\x00" + text.encode()).digest() != leaf:
            raise NotAuthentic(f"The text of entry {index} is not the one in the log.")
        return cls(index, leaf, text)


@dataclass(frozen=True)
class Verified:
    """A certificate that verifies.

    ``log_entries``: of the log that it was compared with; None: no log was given. ``claim_in_log``: that log holds a
    digest of every claim. One of 21 November 2026 holds none.
    """

    statement: dict[str, Any]
    log_entries: int | None
    claim_in_log: bool

    @property
    def compared(self) -> str:
        """Return in words whether the claim was compared with the log."""
        if self.log_entries is None:
            return "claim not compared with the log"
        if not self.claim_in_log:
            return (
                f"version compared with the log of {self.log_entries} entries; that old log has no digest of its claim"
            )
        compared = f"claim compared with the log of {self.log_entries} entries"
        old = self.statement["predicateType"] == _OLD
        return f"{compared}; certificates of this old format have no entry there" if old else compared


def verify_certificate(
    certificate: str | bytes | Mapping[str, Any],
    *keys: str,
    log: str | bytes | None = None,
    opening: str | None = None,
    subject_id: str | None = None,
    subject_ids: Sequence[str] | None = None,
    sample_ids: Sequence[str] | None = None,
    case_id: str | None = None,
) -> Verified:
    """Verify the signature and the proofs of a certificate, and return its statement.

    ``keys`` are the log's public key (``log.vkey``) and any that it has retired. Get them another way than the
    certificate: one that brings its own key proves nothing. ``log`` is the text of an exported log. With it the claim
    is compared with the entries, and the first key's rotations are followed. ``opening`` with ``subject_id``,
    ``subject_ids`` or ``sample_ids``, and with the ``case_id`` if there was one, checks as well whom the certificate is
    about. That the claim itself is true is not checked; its guarantee says what it depends on.

    Raises:
        NotAuthentic: something does not fit; the message says what.
        ValueError: no key was given, or an opening without a name, or a name without an opening.
    """
    if not keys:
        raise ValueError("Give the log's public key: verify_certificate(certificate, key).")
    names = [each for each in (subject_id, subject_ids, sample_ids) if each is not None]
    if len(names) != (opening is not None):
        raise ValueError("An opening opens one name: give it with subject_id, subject_ids or sample_ids.")
    known = [LogKey.parse(key) for key in keys]
    try:
        envelope = parsed(json.dumps(dict(certificate)) if isinstance(certificate, Mapping) else certificate)
        if log is None:
            found = Verified(_statement(envelope, known), None, False)
        else:
            found = _verified_in_log(envelope, known, log)
        if opening is not None:
            people = sorted(
                {normalize("NFC", each) for each in ([subject_id] if subject_id is not None else subject_ids or ())}
            )
            samples = [normalize("NFC", each) for each in sample_ids or ()]  # the service compares ids in this form
            _check_opening(found.statement, bytes.fromhex(opening), people, samples, case_id)
    except NotAuthentic:
        raise
    except _MALFORMED as error:
        raise NotAuthentic(f"The certificate or the log is malformed ({type(error).__name__}).") from None
    return found


def _statement(envelope: Mapping[str, Any], keys: Sequence[LogKey]) -> dict[str, Any]:
    payload = _decoded(envelope["payload"])
    signed = envelope["signatures"][0]
    if envelope["payloadType"] != _PAYLOAD_TYPE:
        raise NotAuthentic("The payload is not an in-toto statement.")
    key = next((each for each in keys if each.id.hex() == signed["keyid"]), keys[0])
    kind = _PAYLOAD_TYPE.encode()
    key.check(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload), _decoded(signed["sig"]))
    statement: dict[str, Any] = parsed(payload)
    if statement["_type"] != _STATEMENT:
        raise NotAuthentic("The payload is not an in-toto statement of version 1.")
    if statement["predicateType"] not in (_OLD, _NEW):
        told = f"The certificate has the format {statement['predicateType']!r}; known are {_OLD} and {_NEW}."
        raise NotAuthentic(f"{told} A newer release may know it.")
    predicate = statement["predicate"]
    _require_types(predicate)
    files = [
        {"name": f"{part['model']}/versions/{part['version']}", "digest": {"sha256": part["checkpoint_sha256"]}}
        for part in predicate["models"]
    ]
    if statement["subject"] != files:
        raise NotAuthentic("The files that the statement is about are not those of its models.")
    for part in predicate["models"]:
        _check_walls(part.get("claim"), f"version {part['version']} of {part['model']}")
    _check_audit(predicate["audit"], predicate["request"], key)
    return statement


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


def _check_walls(claim: object, name: str) -> None:
    """Check that a claim says no more than the walls of the world that made its version. Raises NotAuthentic."""
    if not isinstance(claim, Mapping) or claim.get("world") is None:
        return
    world = claim["world"] if isinstance(claim["world"], Mapping) else {}
    walls, readers, repeats = (world.get(field) for field in ("walls", "own_readers", "repeats"))
    shown = walls == "new root" and type(readers) is int and readers == 0
    exact = "exact" in (claim.get("guarantee"), claim.get("basis"))
    if exact and not shown and claim.get("operators_word") is not True:
        what = f"behind the walls {walls!r}, with {readers!r} sources read by the operator's own program"
        raise NotAuthentic(f"The claim of {name} is exact, {what}, and does not say that this is the operator's word.")
    if claim.get("deterministic") is True and repeats is not True:
        raise NotAuthentic(
            f"The claim of {name} is deterministic, and its worlds were not seen to make the same bytes."
        )


def _check_audit(audit: Mapping[str, Any], request_id: str, key: LogKey) -> None:
    """Check that each entry lies under the signed head, and that acceptance and completion are among them."""
    size, root = key.head(audit["checkpoint"])
    told = set()
    for each in audit["entries"]:
        entry = _Entry.parse(each)
        hashes = [_decoded(hash_) for hash_ in each["hashes"]]
        if not 0 <= entry.index < size or _root(entry.leaf, entry.index, size, hashes) != root:
            raise NotAuthentic(f"The proof of entry {entry.index} does not lead to the signed head.")
        if entry.text is None:
            continue
        body = parsed(entry.text)
        if (body["kind"], body["request"]) != (each["kind"], request_id):
            raise NotAuthentic(f"The text of entry {entry.index} is of another kind, or of another request.")
        told.add(body["kind"])
    if not {"request.accepted", "request.completed"} <= told:
        raise NotAuthentic("The certificate does not prove the request's acceptance and completion.")


def _verified_in_log(envelope: Mapping[str, Any], keys: Sequence[LogKey], log: str | bytes) -> Verified:
    """Verify certificate and exported log together."""
    raw = log.encode() if isinstance(log, str) else log
    *lines, last = (parsed(line) for line in raw.splitlines())
    entries = [_Entry.parse(line) for line in lines]
    trusted = _trusted(keys[0], entries)
    current = trusted[0][0]
    size, root = current.head(last["checkpoint"])
    if len(entries) != size or any(each.index != place for place, each in enumerate(entries)):
        raise NotAuthentic(f"The export has {len(entries)} entries, in some order; its head was signed over {size}.")
    leaves = [each.leaf for each in entries]
    if _tree(leaves) != root:
        raise NotAuthentic("The entries do not have the signed root: one was edited, removed or reordered.")
    statement = _statement(envelope, [*(key for key, _ in trusted), *keys[1:]])
    size, root = _head_in_time(trusted, statement["predicate"]["audit"]["checkpoint"])
    if size > len(leaves) or _tree(leaves[:size]) != root:
        raise NotAuthentic(f"The log does not continue the certificate's head over {size} entries.")
    digest = hashlib.sha256(_decoded(envelope["payload"])).hexdigest()
    return Verified(statement, len(leaves), _compare(statement, digest, [each.text for each in entries]))


def _trusted(key: LogKey, entries: Iterable[_Entry]) -> list[tuple[LogKey, int | None]]:
    """Return the key in use and then those before it, each with the largest head that it may have signed.

    A rotation leads on where the retired key signed for the new one, and back where the new one signed for the retired.
    """
    rotations = []
    for each in entries:
        if each.text is None or _ROTATED not in each.text or not _is_rotation(each.text):
            continue
        said = parsed(each.text)
        old, new = LogKey.parse(said["retired"]), LogKey.parse(said["key"])
        on = old.signed(said["endorsement"], f"expunge: this key's successor\n{new}\n")
        back = new.signed(said.get("acknowledgement"), f"expunge: this key's predecessor\n{old}\n")
        rotations.append((each.index + 1, old, new, on, back))
    found: list[tuple[LogKey, int | None]] = [(key, None)]
    for size, old, new, on, _ in rotations:
        if on and old == found[0][0]:
            found[0] = (old, size)
            found.insert(0, (new, None))
    last = key
    for size, old, new, _, back in reversed(rotations):
        if back and new == last:
            found.append((old, size))
            last = old
    return found


def _is_rotation(text: str) -> bool:
    try:
        said = parsed(text)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("kind") == _ROTATED


def _head_in_time(trusted: Iterable[tuple[LogKey, int | None]], note: str) -> tuple[int, bytes]:
    """Return a head that one of the keys signed while it was in use."""
    for key, most in trusted:
        try:
            size, root = key.head(note)
        except NotAuthentic:
            continue
        if most is not None and size > most:
            raise NotAuthentic(f"A head over {size} entries was signed with a key that entry {most - 1} had retired.")
        return size, root
    raise NotAuthentic("The certificate's head is not signed by a key of this log.")


def _compare(statement: Mapping[str, Any], digest: str, texts: Sequence[str | None]) -> bool:
    """Compare what the statement says with what the log's entries say; return whether they have its claims' digests."""
    predicate, recorded = statement["predicate"], statement["predicateType"] == _NEW
    published = []
    for entry in predicate["audit"]["entries"]:
        text = texts[entry["index"]]
        if text is None:
            raise NotAuthentic(f"The export hides the text of entry {entry['index']}: it is another tenant's.")
        body = parsed(text)
        if body["kind"] != entry["kind"]:
            raise NotAuthentic(f"Entry {entry['index']} is of another kind in the log.")
        if body["kind"] in ("version.published", "version.restored"):
            published.append(body)
    digested = [_compare_part(part, published, recorded) for part in predicate["models"]]
    issued = ["certificate.issued", predicate["request"], digest]
    bodies = [parsed(text) for text in texts if text is not None and digest in text]
    if recorded and issued not in [
        [each.get(name) for name in ("kind", "request", "payload_sha256")] for each in bodies
    ]:
        raise NotAuthentic("The log has no entry that this certificate was issued. Was the log exported before it?")
    return all(digested)


def _compare_part(part: Mapping[str, Any], published: Sequence[Mapping[str, Any]], recorded: bool) -> bool:
    """Compare one model's part with the entry that publishes it; return whether that entry has the claim's digest."""
    word = "generation" if recorded or "generation" in part else _LINEAGE
    wanted = [part["checkpoint_sha256"], part[word], part["version"]]
    said = [each for each in published if word in each and [each["checkpoint"], each[word], each["number"]] == wanted]
    name = f"version {part['version']} of {part['model']}"
    if not said:
        raise NotAuthentic(f"The log has no entry that publishes {name} with this checkpoint.")
    digested = word != _LINEAGE or "claim_sha256" in said[0]
    if digested and said[0].get("claim_sha256") not in _claim_digests(part["claim"]):
        raise NotAuthentic(f"The entry that publishes {name} holds another claim.")
    if said[0]["method"] != part["method"] and (recorded or part["samples"]):
        raise NotAuthentic(f"The entry that publishes {name} names another method.")
    return digested


def _claim_digests(claim: Mapping[str, Any]) -> tuple[str, str]:
    """Return the digest by RFC 8785; and that of Python's canonical JSON, which entries of before have."""
    before = json.dumps(dict(claim), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(_canonical(claim).encode()).hexdigest(), hashlib.sha256(before.encode()).hexdigest()


def _canonical(value: Any) -> str:
    """Write canonical JSON (RFC 8785). Every number is a double. Raises ValueError for one that is not finite."""
    if isinstance(value, Mapping):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return f"{{{','.join(f'{_canonical(name)}:{_canonical(value[name])}' for name in names)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value, ensure_ascii=False)
    return _number(float(str(value)))  # of an integer without end: infinity


def _number(value: float) -> str:
    """Write a double as ECMAScript does: the fewest digits; an exponent below 1e-6 and from 1e21 on."""
    if not isfinite(value):
        raise ValueError("A claim has no infinite numbers.")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 (for mypy: it is finite)
    text, point = "".join(map(str, digits)), len(digits) + exponent
    if value == 0:
        return "0"
    if len(text) <= point <= 21:
        text += "0" * (point - len(text))
    elif 0 < point <= 21:
        text = f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{text}"
    else:
        text = f"{text[0]}{'.' * (len(text) > 1)}{text[1:]}e{point - 1:+d}"
    return "-" * sign + text


def _tree(leaves: Sequence[bytes]) -> bytes:
    """Return the root over these hashes (RFC 6962, 2.1)."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + _tree(leaves[:split]) + _tree(leaves[split:])).digest()


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
    body = next(entry["body"] for entry in entries if entry["kind"] == "request.accepted" and entry["body"] is not None)
    if not hmac.compare_digest(str(parsed(body)["commitment"]), expected):
        raise NotAuthentic(
            "The certificate is not about the person that you named, or the opening is another request's."
        )


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


def _decoded(text: str) -> bytes:
    """Return the bytes; none where the text is no base64, or not the one that these bytes have."""
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        return b""
    return raw if b64encode(raw).decode() == text else b""
