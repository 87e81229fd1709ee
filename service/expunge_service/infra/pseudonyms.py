"""Opaque ids, and keyed digests of everything that names a person.

A digest is HMAC-SHA-256 under the pepper, which is stored outside the database. Each kind has its own domain, so that a
subject and a sample of the same name have different digests. Each tenant has one too: a person of two tenants
has two digests, and the database does not link them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from expunge_service.infra.settings import read_secret
from unlearning.accounting.ids import nfc

Kind = Literal[
    "subject",
    "sample",
    "content",
    "holder",
    "hold",
    "api-key",
    "idempotency",
    "opening",
    "webhook",
    "session",
    "form",
    "link",
    "page",
    "proxy",
    "spelling",
    "look",
    "commitment",
    "part",
    "aside",
]


_LINES = 20_000
"""that are joined at once"""


@dataclass(frozen=True)
class Pepper:
    """The secret that digests are keyed by, the same for the life of an installation.

    ``id`` (16 hex digits) names the pepper and does not give it away.
    """

    secret: bytes = field(repr=False)
    id: str

    @classmethod
    def of(cls, secret: bytes) -> Pepper:
        return cls(secret, hmac.new(secret, b"expunge/pepper-id", hashlib.sha256).hexdigest()[:16])

    @classmethod
    def load(cls, path: Path) -> Pepper:
        """Read the file. Raises SettingsError where it is missing or malformed."""
        return cls.of(read_secret(path))


def agrees(pepper: Pepper, kind: Kind, value: str | bytes, stored: str) -> bool:
    """Return whether the digest was made of ``value``, in constant time."""
    return hmac.compare_digest(stored.encode(), digest(pepper, kind, value).encode())


def new_id() -> str:
    """Return a random opaque id: 32 hex digits."""
    return secrets.token_hex(16)


def digest(pepper: Pepper, kind: Kind, value: str | bytes) -> str:
    """Return HMAC-SHA-256 of ``value`` under the pepper, in the domain of ``kind``: 64 hex digits."""
    return mac(pepper.secret, kind, value)


def mac(key: bytes, kind: Kind, value: str | bytes) -> str:
    """Return HMAC-SHA-256 of ``value`` under a key of 32 bytes, in the domain of ``kind``: 64 hex digits."""
    data = value.encode() if isinstance(value, str) else value
    return hmac.digest(key, b"expunge/" + kind.encode() + b"\0" + data, "sha256").hex()


def keyed(pepper: Pepper, kind: Kind) -> hmac.HMAC:
    """Return an HMAC-SHA-256 under the pepper, in the domain of ``kind``, that takes its value in parts."""
    return hmac.new(pepper.secret, b"expunge/" + kind.encode() + b"\0", hashlib.sha256)


def rows_digest(pepper: Pepper, table: str, owner: str | int, lines: Iterable[str]) -> str:
    """Return the keyed digest of a table's lines in their order, of those that belong to ``owner``: 64 hex digits.

    The count of the lines ends it: so no value with a line's end in it makes one row look like two.
    """
    whole, rest, count = keyed(pepper, "commitment"), iter(lines), 0
    whole.update(f"{table}\0{owner}\0".encode())
    while part := list(islice(rest, _LINES)):
        count += len(part)
        whole.update("\n".join([*part, ""]).encode())
    whole.update(f"\0{count}".encode())
    return whole.hexdigest()


def subject_digest(pepper: Pepper, tenant_id: str, subject: str) -> str:
    """Return the digest of a person's id: one for all spellings with the same NFC form."""
    return digest(pepper, "subject", _within(tenant_id, nfc(subject).encode()))


def sample_digest(pepper: Pepper, tenant_id: str, sample: str) -> str:
    return digest(pepper, "sample", _within(tenant_id, nfc(sample).encode()))


def spelling_number(pepper: Pepper, tenant_id: str, form: str) -> int:
    """Return the first 8 bytes of the digest of a reduced form of an id, as a signed whole number."""
    return _number(digest(pepper, "spelling", _within(tenant_id, form.encode())), 8)


def look_number(pepper: Pepper, tenant_id: str, look: str) -> int:
    """Return the first 8 bytes of the digest of a look of ids, as a signed whole number."""
    return _number(digest(pepper, "look", _within(tenant_id, look.encode())), 8)


def person_number(digest_of_subject: str) -> int:
    """Return the first 4 bytes of a person's digest, as a signed whole number: one of 4 billion people."""
    return _number(digest_of_subject, 4)


def _number(text: str, size: int) -> int:
    return int.from_bytes(bytes.fromhex(text[: 2 * size]), "big", signed=True)


def digests(pepper: Pepper, kind: Kind, tenant_id: str, values: Iterable[bytes | memoryview]) -> bytes:
    """Return the digests of a tenant's values one after the other, 32 bytes each.

    In hex they are those of ``sample_digest`` and its siblings.
    """
    # HMAC by its two hashes (RFC 2104), of a key that is shorter than a block: a copy of these is made in C, and one of
    # hmac.HMAC in Python.
    inner, outer = (
        hashlib.sha256(bytes(byte ^ pad for byte in pepper.secret.ljust(64, b"\0"))) for pad in (0x36, 0x5C)
    )
    inner.update(b"expunge/" + kind.encode() + b"\0" + _within(tenant_id, b""))
    joined = bytearray()
    for value in values:
        message, whole = inner.copy(), outer.copy()
        message.update(value)
        whole.update(message.digest())
        joined += whole.digest()
    return bytes(joined)


def content_digest(pepper: Pepper, tenant_id: str, content: bytes) -> str:
    """Digest the bytes of a sample, by which an update sees that it was not changed."""
    return digest(pepper, "content", _within(tenant_id, content))


def _within(tenant_id: str, value: bytes) -> bytes:
    """Join the two by a zero byte. No tenant's name holds one, so no other pair gives the same bytes."""
    return tenant_id.encode() + b"\0" + value
