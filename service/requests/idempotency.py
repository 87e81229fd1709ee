"""Idempotency-Key (IETF draft-ietf-httpapi-idempotency-key-header-07): the answer is stored with the work."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, bindparam, delete, insert, select, text
from sqlalchemy.orm import Session

from expunge.service.access import Caller
from expunge.service.audit import recorded_at
from expunge.service.infra.tables import IdempotencyKey
from expunge.service.infra.time import SECOND
from expunge.service.requests.states import RequestRefused

IDEMPOTENCY_KEY = r'^("[\x20-\x21\x23-\x5b\x5d-\x7e]{1,255}"|[\x21\x23-\x5b\x5d-\x7e]{1,255})$'
_KEYS = IdempotencyKey.__table__.c
_MINE = _KEYS.actor_id.in_((bindparam("actor"), bindparam("api_key")))  # before migration 0018 a row named the API key
_PLACE = and_(_KEYS.tenant_id == bindparam("tenant"), _MINE, _KEYS.key == bindparam("used"))
_STORED = select(_KEYS.body_digest, _KEYS.status_code, _KEYS.headers, _KEYS.answer, _KEYS.expires_at).where(_PLACE)
_INSERT = insert(IdempotencyKey.__table__)
_LOCK = text("SELECT pg_try_advisory_xact_lock(:lock)")
_KEY = re.compile(IDEMPOTENCY_KEY.replace("$", r"\Z"))


@dataclass(frozen=True)
class StoredAnswer:
    """An answer given before."""

    status: int
    headers: dict[str, str]
    answer: dict[str, Any]


@dataclass(frozen=True)
class Use:
    """One call's use of a key. ``body_digest`` is keyed and covers the path too."""

    caller: Caller
    key: str
    body_digest: str

    @property
    def place(self) -> tuple[str, str, str]:
        """Return the primary key of the row. Two actors are apart; the API keys of one actor, as of one that was
        rotated, share it.
        """
        return self.caller.tenant_id, self.caller.actor_id, self.key


def read_key(lines: Sequence[str] | None) -> str:
    """Read the key in the header: one quoted string of printable ASCII; quotes may be left out.

    Raises RequestRefused (400) where it is missing, repeated or malformed.
    """
    if not lines:
        raise _refused(400, "missing", "Send an Idempotency-Key header: a new random value for each new request.")
    shape = _KEY.fullmatch(lines[0].strip()) if len(lines) == 1 else None
    if shape is None:
        raise _refused(400, "invalid", "Idempotency-Key must be one string of 1 to 255 printable ASCII characters.")
    return shape[1].removeprefix('"').removesuffix('"')


def begin_call(session: Session, use: Use) -> StoredAnswer | None:
    """Take the key for this transaction, or return the answer it was given before.

    Raises RequestRefused: 422, it was used with another body; 409, another call is using it right now.
    """
    if not _take(session, use):
        raise _refused(409, "in_flight", "A call with this Idempotency-Key is in progress. Repeat it in a moment.")
    place = dict(zip(("tenant", "actor", "used"), use.place, strict=True)) | {"api_key": use.caller.key_id}
    row = session.execute(_STORED, place).one_or_none()
    if row is None:
        return None
    if row.expires_at <= recorded_at(session):
        session.execute(delete(IdempotencyKey.__table__).where(_PLACE), place)
        return None
    if row.body_digest != use.body_digest:
        raise _refused(422, "reused", "This Idempotency-Key was used with another body. Take a new one.")
    return StoredAnswer(row.status_code, row.headers, row.answer)


def finish_call(session: Session, use: Use, stored: StoredAnswer, lifetime_seconds: float) -> None:
    """Store the answer under the key that ``begin`` took, in the same transaction as the work."""
    row = {
        "tenant_id": use.caller.tenant_id,
        "actor_id": use.caller.actor_id,
        "key": use.key,
        "body_digest": use.body_digest,
        "status_code": stored.status,
        "headers": stored.headers,
        "answer": stored.answer,
        "expires_at": recorded_at(session) + int(lifetime_seconds * SECOND),
    }
    session.execute(_INSERT, row)


def _refused(status: int, code: str, what: str) -> RequestRefused:
    errors = [{"header": "Idempotency-Key", "detail": what}]
    return RequestRefused(status, f"idempotency_key_{code}", what, errors, 1 if status == 409 else None)


def _take(session: Session, use: Use) -> bool:
    """Return whether no other transaction uses this key. SQLite has one writer at a time anyway."""
    if session.get_bind().dialect.name != "postgresql":
        return True
    number = int.from_bytes(hashlib.sha256("\0".join(use.place).encode()).digest()[:8], "big", signed=True)
    return bool(session.scalar(_LOCK, {"lock": number}))
