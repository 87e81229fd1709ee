"""Opaque ids, and keyed digests of everything that names a person.

A digest is HMAC-SHA-256 under the pepper, which lies outside the database; each kind has its own domain, so
that a subject and a sample of the same name share nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from service.settings import read_secret

Kind = Literal[
    "subject", "sample", "content", "holder", "api-key", "idempotency", "opening", "webhook", "session", "form"
]


@dataclass(frozen=True)
class Pepper:
    """The secret of the digests. ``id`` (16 hex digits) says under which pepper a stored digest was made."""

    secret: bytes = field(repr=False)
    id: str

    @classmethod
    def of(cls, secret: bytes) -> Pepper:
        return cls(secret, hmac.new(secret, b"expunge/pepper-id", hashlib.sha256).hexdigest()[:16])

    @classmethod
    def load(cls, path: Path) -> Pepper:
        """Raises SettingsError where the file is missing or malformed."""
        return cls.of(read_secret("EXPUNGE_PEPPER_FILE", path))


def new_id() -> str:
    """A random opaque id: 32 hex digits."""
    return secrets.token_hex(16)


def digest(pepper: Pepper, kind: Kind, value: str | bytes) -> str:
    """HMAC-SHA-256 of ``value`` under the pepper, in the domain of ``kind``: 64 hex digits."""
    data = value.encode() if isinstance(value, str) else value
    return hmac.new(pepper.secret, b"expunge/" + kind.encode() + b"\0" + data, hashlib.sha256).hexdigest()


def subject_digest(pepper: Pepper, subject: str) -> str:
    return digest(pepper, "subject", subject)


def sample_digest(pepper: Pepper, sample: str) -> str:
    return digest(pepper, "sample", sample)
