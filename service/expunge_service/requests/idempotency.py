"""Idempotency-Key (IETF draft-ietf-httpapi-idempotency-key-header-07): the answer is stored with the work."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, and_, bindparam, delete, insert, select, text
from sqlalchemy.orm import Session

from expunge_service.access import Caller
from expunge_service.audit import recorded_at
from expunge_service.infra.tables import IdempotencyKey
from expunge_service.infra.time import SECOND
from expunge_service.requests.states import RequestRefused

IDEMPOTENCY_KEY = r'^("[\x20-\x21\x23-\x5b\x5d-\x7e]{1,255}"|[\x21\x23-\x5b\x5d-\x7e]{1,255})$'
_KEYS = IdempotencyKey.__table__.c
_ACTORS: BindParameter[Any] = bindparam("actors", expanding=True)
_PLACES = and_(
    _KEYS.tenant_id == bindparam("tenant"),
    _KEYS.actor_id.in_(_ACTORS),
    _KEYS.key.in_(bindparam("used", expanding=True)),
)
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

    @property
    def lock(self) -> int:
        """Return the number of the key's lock in PostgreSQL."""
        return int.from_bytes(hashlib.sha256("\0".join(self.place).encode()).digest()[:8], "big", signed=True)

    @property
    def actors(self) -> tuple[str, str]:
        """Return under whom a row may be: before migration 0018 it named the API key."""
        return self.caller.actor_id, self.caller.key_id


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


_STORED = (
    select(_KEYS.actor_id, _KEYS.key, _KEYS.body_digest, _KEYS.status_code)
    .add_columns(_KEYS.headers, _KEYS.answer, _KEYS.expires_at)
    .where(_PLACES)
)


def begin_calls(session: Session, uses: Sequence[Use]) -> list[StoredAnswer | RequestRefused | None]:
    """Take the keys of one tenant's calls for this transaction. No two have the same place.

    Of each it returns None, or the answer that was given under its key before, or why it is refused: 422, the key was
    used with another body; 409, another call is using it right now.
    """
    taken = _take(session, uses)
    place = {"tenant": uses[0].caller.tenant_id, "actors": sorted({actor for use in uses for actor in use.actors})}
    stored = session.execute(_STORED, place | {"used": [use.key for use in uses]}).all()
    rows = {(row.actor_id, row.key): row for row in stored}
    return [_begun(session, use, rows) if use in taken else _in_flight() for use in uses]


def _begun(session: Session, use: Use, rows: Mapping[tuple[str, str], Any]) -> StoredAnswer | RequestRefused | None:
    row = next((rows[actor, use.key] for actor in use.actors if (actor, use.key) in rows), None)
    if row is None:
        return None
    if row.expires_at <= recorded_at(session):
        place = {"tenant": use.caller.tenant_id, "actors": use.actors, "used": [use.key]}
        session.execute(delete(IdempotencyKey.__table__).where(_PLACES), place)
        return None
    if row.body_digest != use.body_digest:
        return _refused(422, "reused", "This Idempotency-Key was used with another body. Take a new one.")
    return StoredAnswer(row.status_code, row.headers, row.answer)


_INSERT = insert(IdempotencyKey.__table__)


def finish_calls(session: Session, answers: Sequence[tuple[Use, StoredAnswer]], lifetime_seconds: float) -> None:
    """Store the answers under the keys that ``begin_calls`` took, in the same transaction as the work."""
    rows = [
        {
            "tenant_id": use.caller.tenant_id,
            "actor_id": use.caller.actor_id,
            "key": use.key,
            "body_digest": use.body_digest,
            "status_code": stored.status,
            "headers": stored.headers,
            "answer": stored.answer,
            "expires_at": recorded_at(session) + int(lifetime_seconds * SECOND),
        }
        for use, stored in answers
    ]
    if rows:
        session.execute(_INSERT, rows)


def _in_flight() -> RequestRefused:
    return _refused(409, "in_flight", "A call with this Idempotency-Key is in progress. Repeat it in a moment.")


def _refused(status: int, code: str, what: str) -> RequestRefused:
    errors = [{"header": "Idempotency-Key", "detail": what}]
    return RequestRefused(status, f"idempotency_key_{code}", what, errors, 1 if status == 409 else None)


_LOCKS = text("SELECT number, pg_try_advisory_xact_lock(number) FROM unnest(CAST(:locks AS bigint[])) AS number")


def _take(session: Session, uses: Sequence[Use]) -> Collection[Use]:
    """Return those whose keys no other transaction uses. SQLite has one writer at a time anyway."""
    if session.get_bind().dialect.name != "postgresql":
        return uses
    locks = {use.lock: use for use in uses}
    return [locks[number] for number, free in session.execute(_LOCKS, {"locks": [*locks]}) if free]
