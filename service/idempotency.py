"""Idempotency-Key (IETF draft-ietf-httpapi-idempotency-key-header-07): the answer is stored with the work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.auth import Caller
from service.db import now
from service.records import IdempotencyKey

_KEY = re.compile(r'"([\x20-\x21\x23-\x5b\x5d-\x7e]{1,255})"|([\x21\x23-\x5b\x5d-\x7e]{1,255})')


class KeyRefused(Exception):
    """The Idempotency-Key cannot be used: ``status`` and ``code`` say why, ``detail`` what to do."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class Stored:
    """An answer given before."""

    status: int
    headers: dict[str, str]
    answer: dict[str, Any]


def read_key(lines: Sequence[str] | None) -> str:
    """The key in the header: one quoted string of printable ASCII; quotes may be left out.

    Raises KeyRefused (400) where it is missing, repeated or malformed.
    """
    if not lines:
        raise KeyRefused(400, "missing", "Send an Idempotency-Key header: a new random value for each new request.")
    shape = _KEY.fullmatch(lines[0].strip()) if len(lines) == 1 else None
    if shape is None:
        raise KeyRefused(400, "invalid", "Idempotency-Key must be one string of 1 to 255 printable ASCII characters.")
    return shape[1] or shape[2]


def begin(session: Session, caller: Caller, key: str, body_digest: str, lifetime_seconds: float) -> Stored | None:
    """Claim the key inside the transaction of the work, or return the answer it was given before.

    Raises KeyRefused: 422, it was used with another body; 409, another call is using it right now. On PostgreSQL
    the primary key decides: the second insert waits for the first transaction and then fails.
    """
    at = now(session)
    place = (caller.tenant_id, caller.key_id, key)
    row = session.get(IdempotencyKey, place)
    if row is not None and row.expires_at <= at:
        session.delete(row)
        session.flush()
        row = None
    if row is not None:
        if row.body_digest != body_digest:
            raise KeyRefused(422, "reused", "This Idempotency-Key was used with another body. Take a new one.")
        return Stored(row.status_code, row.headers, row.answer)
    claim = IdempotencyKey(
        tenant_id=caller.tenant_id,
        key_id=caller.key_id,
        key=key,
        body_digest=body_digest,
        status_code=0,
        headers={},
        answer={},
        expires_at=at + int(lifetime_seconds * 1_000_000),
    )
    session.add(claim)
    try:
        session.flush()
    except IntegrityError:
        detail = "A call with this Idempotency-Key is in progress. Repeat it in a moment."
        raise KeyRefused(409, "in_flight", detail) from None
    return None


def finish(session: Session, caller: Caller, key: str, stored: Stored) -> None:
    """Store the answer under the key that ``begin`` claimed, in the same transaction."""
    row = session.get_one(IdempotencyKey, (caller.tenant_id, caller.key_id, key))
    row.status_code, row.headers, row.answer = stored.status, stored.headers, stored.answer
