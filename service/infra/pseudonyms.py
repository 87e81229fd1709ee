"""Opaque ids, and keyed digests of everything that names a person.

A digest is HMAC-SHA-256 under the pepper, which lies outside the database; each kind has its own domain, so
that a subject and a sample of the same name share nothing. So has each tenant: a person whom two tenants know has two
digests, and nobody who reads the database can link them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from service.infra.settings import Settings, read_secret

Kind = Literal[
    "subject", "sample", "content", "holder", "hold", "api-key", "idempotency", "opening", "webhook", "session", "form"
]


class PepperMissing(LookupError):
    """A stored digest was made under a pepper that is not configured. The message says which, and what to do."""

    def __init__(self, pepper_id: str) -> None:
        super().__init__(
            f"Pepper {pepper_id} is not configured. Put its file back: EXPUNGE_PEPPER_FILE, or "
            "EXPUNGE_RETIRED_PEPPER_FILES where it was replaced."
        )


@dataclass(frozen=True)
class Pepper:
    """The secret of the digests. ``id`` (16 hex digits) says under which pepper a stored digest was made.

    New digests are made under this one; ``retired`` ones still find what was stored under them.
    """

    secret: bytes = field(repr=False)
    id: str
    retired: tuple[Pepper, ...] = ()
    lacking: frozenset[str] = frozenset()
    """ids that served generations name and no configured file holds (``service.requests.peppers.aware``)"""

    @classmethod
    def of(cls, secret: bytes) -> Pepper:
        return cls(secret, hmac.new(secret, b"expunge/pepper-id", hashlib.sha256).hexdigest()[:16])

    @classmethod
    def load(cls, path: Path) -> Pepper:
        """Raises SettingsError where the file is missing or malformed."""
        return cls.of(read_secret("EXPUNGE_PEPPER_FILE", path))

    @classmethod
    def configured(cls, settings: Settings) -> Pepper:
        """The pepper with those that it replaced. Raises SettingsError where a file is missing or malformed."""
        current = cls.load(settings.pepper_file)
        retired = (cls.of(read_secret("EXPUNGE_RETIRED_PEPPER_FILES", path)) for path in settings.retired_peppers)
        others = {pepper.id: pepper for pepper in retired if pepper.id != current.id}
        return replace(current, retired=tuple(others.values()))

    @property
    def every(self) -> tuple[Pepper, ...]:
        """This one, then the retired."""
        return self, *self.retired

    @property
    def alone(self) -> bool:
        """Whether every digest that can be met was made under this one: the common case, and intake's fast way."""
        return not (self.retired or self.lacking)

    def named(self, pepper_id: str) -> Pepper:
        """The configured pepper of this id. Raises PepperMissing."""
        for pepper in self.every:
            if pepper.id == pepper_id:
                return pepper
        raise PepperMissing(pepper_id)


def agrees(pepper: Pepper, kind: Kind, value: str | bytes, stored: str) -> bool:
    """Whether the digest was made of ``value`` under any of the peppers. The time taken does not tell which."""
    return any([hmac.compare_digest(stored.encode(), digest(each, kind, value).encode()) for each in pepper.every])


def new_id() -> str:
    """A random opaque id: 32 hex digits."""
    return secrets.token_hex(16)


def digest(pepper: Pepper, kind: Kind, value: str | bytes) -> str:
    """HMAC-SHA-256 of ``value`` under the pepper, in the domain of ``kind``: 64 hex digits."""
    data = value.encode() if isinstance(value, str) else value
    return hmac.new(pepper.secret, b"expunge/" + kind.encode() + b"\0" + data, hashlib.sha256).hexdigest()


def subject_digest(pepper: Pepper, tenant_id: str, subject: str) -> str:
    return digest(pepper, "subject", _within(tenant_id, subject.encode()))


def sample_digest(pepper: Pepper, tenant_id: str, sample: str) -> str:
    return digest(pepper, "sample", _within(tenant_id, sample.encode()))


def content_digest(pepper: Pepper, tenant_id: str, content: bytes) -> str:
    """Digest what a sample holds: its bytes, by which a release sees that it was not changed."""
    return digest(pepper, "content", _within(tenant_id, content))


def _within(tenant_id: str, value: bytes) -> bytes:
    """No tenant's name holds a zero byte, so the two cannot be taken for another pair."""
    return tenant_id.encode() + b"\0" + value
