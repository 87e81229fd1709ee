"""API keys: ``exp_<prefix>_<secret>``. The database keeps the prefix and an HMAC; the key is shown once.

A key is 256 random bits, so one fast HMAC is enough. A slow hash on each call would make denial of service easy.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import Database, now
from expunge_service.infra.pseudonyms import Pepper, agrees, digest, new_id
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.tables import ActorName, ApiKey, Consent
from expunge_service.infra.tenants import DEFAULT_TENANT, require_name

_KEYS = ApiKey.__table__.c
_KEY = re.compile(r"exp_([0-9a-f]{12})_[0-9a-f]{64}")


class Scope(StrEnum):
    DELETIONS_WRITE = "deletions:write"
    DELETIONS_READ = "deletions:read"
    DELETIONS_DECIDE = "deletions:decide"
    """allows to decide about people: verify, reject, approve, extend; legal holds; lifting of suppression entries"""
    PEOPLE_SEARCH = "people:search"
    """allows to learn whether a person is in the data, or was forgotten"""
    MODELS_ADMIN = "models:admin"
    MODELS_READ = "models:read"
    CHECKPOINTS_READ = "checkpoints:read"
    AUDIT_READ = "audit:read"
    KEYS_ADMIN = "keys:admin"


@dataclass(frozen=True)
class Caller:
    """The caller of a route. Every query is limited to ``tenant_id``."""

    tenant_id: str
    key_id: str
    scopes: frozenset[str]
    actor_id: str
    """the holder of the key, or the person that a proxy named"""
    origin: str
    """the actor that the making of the key began with; the key's own if it was made in a shell. The maker of a key
    over HTTP sees it, so two keys of one origin may be in one hand.
    """
    vouched: bool = False
    """whether a proxy named the actor"""


@dataclass(frozen=True)
class NewKey:
    """A new key. ``secret`` is the whole key, to be shown once and never stored."""

    id: str
    prefix: str
    actor_id: str
    secret: str = field(repr=False)


def create_key(
    session: Session,
    pepper: Pepper,
    *,
    label: str,
    scopes: Iterable[str],
    tenant_id: str = DEFAULT_TENANT,
    expires_at: int | None = None,
    actor_id: str | None = None,
    origin: str | None = None,
) -> NewKey:
    """Make a key. ``expires_at`` in microseconds since 1970; None: never.

    ``actor_id`` is the key's actor. None: a new actor, named by the label. A holder of several keys is one
    actor in the audit log. ``origin`` is that of the caller who is shown the key over HTTP; None: a shell.

    Raises ValueError for an unknown scope or actor, an empty list of scopes, or a malformed tenant, and SettingsError
    for another pepper than that of the installation.
    """
    granted = sorted(Scope(scope) for scope in set(scopes))
    if not granted:
        raise ValueError(f"A key needs at least one scope of: {', '.join(Scope)}.")
    require_name(tenant_id)
    require_pepper(session, pepper)
    if actor_id is None:
        actor_id = _new_actor(session, tenant_id, label)
    elif find_actor(session, tenant_id, actor_id) is None:
        raise ValueError(f"There is no actor {actor_id}.")
    prefix = secrets.token_hex(6)
    key = NewKey(new_id(), prefix, actor_id, f"exp_{prefix}_{secrets.token_hex(32)}")
    row = ApiKey(
        id=key.id,
        tenant_id=tenant_id,
        prefix=prefix,
        digest=digest(pepper, "api-key", key.secret),
        pepper_id=pepper.id,
        label=label,
        actor_id=actor_id,
        origin=origin,
        scopes=list(granted),
        created_at=now(session),
        expires_at=expires_at,
    )
    session.add(row)
    record(
        session, tenant_id, "key.created", key=key.id, issued_to=actor_id, scopes=list(granted), expires_at=expires_at
    )
    return key


def require_pepper(session: Session, pepper: Pepper) -> None:
    """Raise SettingsError where this is not the pepper of the installation. The first API key fixes it.

    Under another pepper no person would be found: a deletion would complete without a match, and a forgotten
    person would be trained on again. Without an API key no request can be accepted, so this catches both.
    """
    other = session.scalar(select(ApiKey.pepper_id).where(ApiKey.pepper_id != pepper.id).limit(1))
    if other is not None:
        raise SettingsError(
            f"EXPUNGE_SECRETS: this installation was made with pepper {other}, and the file holds {pepper.id}. "
            "Put the first pepper's file back: a pepper cannot be changed."
        )


def check_pepper(database: Database, pepper: Pepper) -> None:
    """Do what ``require_pepper`` does, at the start of a process. Raises SettingsError, Busy."""
    with suppress(SQLAlchemyError), database.read() as session:  # before the first migration there is no key
        require_pepper(session, pepper)


def list_keys(session: Session, tenant_id: str = DEFAULT_TENANT) -> Sequence[ApiKey]:
    """Return all keys of a tenant, oldest first, revoked ones included."""
    rows = select(ApiKey).where(ApiKey.tenant_id == tenant_id).order_by(ApiKey.created_at, ApiKey.id)
    return session.scalars(rows).all()


def revoke_key(session: Session, key: str, tenant_id: str = DEFAULT_TENANT) -> bool:
    """Revoke the key with this id or prefix. Return False where there is none, or it was revoked before."""
    named = (ApiKey.id == key) | (ApiKey.prefix == key)
    row = session.scalar(select(ApiKey).where(ApiKey.tenant_id == tenant_id, named, ApiKey.revoked_at.is_(None)))
    if row is None:
        return False
    row.revoked_at = now(session)
    record(session, tenant_id, "key.revoked", key=row.id)
    return True


def rotate_key(
    session: Session,
    pepper: Pepper,
    key: str,
    overlap: int,
    tenant_id: str = DEFAULT_TENANT,
    *,
    origin: str | None = None,
) -> NewKey | None:
    """Make a successor of the key with this id or prefix, with the same actor, label, scopes and lifetime.

    The old key is valid for ``overlap`` microseconds more at most, so that its users can change over. ``origin`` as in
    ``create_key``. Return None where the key is unknown, expired or revoked.
    """
    at = now(session)
    named = (ApiKey.id == key) | (ApiKey.prefix == key)
    row = session.scalar(select(ApiKey).where(ApiKey.tenant_id == tenant_id, named).with_for_update())
    if row is None or _caller(session, row) is None:
        return None
    ends = successor_ends(row, at)
    made = create_key(
        session,
        pepper,
        label=row.label,
        scopes=row.scopes,
        tenant_id=tenant_id,
        expires_at=ends,
        actor_id=row.actor_id,
        origin=origin,
    )
    row.expires_at = at + overlap if row.expires_at is None else min(row.expires_at, at + overlap)
    record(session, tenant_id, "key.rotated", key=row.id, successor=made.id, expires_at=row.expires_at)
    return made


def successor_ends(key: ApiKey, at: int) -> int | None:
    """Return the end of the successor of a key that is rotated ``at``, in microseconds since 1970; None: never."""
    return None if key.expires_at is None else at + key.expires_at - key.created_at


_CALLERS = select(
    _KEYS.tenant_id,
    _KEYS.id,
    _KEYS.scopes,
    _KEYS.actor_id,
    _KEYS.origin,
    _KEYS.revoked_at,
    _KEYS.expires_at,
    _KEYS.digest,
)
_BY_PREFIX = _CALLERS.where(_KEYS.prefix == bindparam("prefix"))


def authenticate(session: Session, pepper: Pepper, key: str) -> Caller | None:
    """Return the caller with this key; None for a malformed, unknown, expired or revoked one."""
    shape = _KEY.fullmatch(key)
    row = session.execute(_BY_PREFIX, {"prefix": shape[1]}).one_or_none() if shape else None
    # compared even where there is no such prefix, so that the time taken reveals nothing
    right = agrees(pepper, "api-key", key, row.digest if row else "0" * 64)
    return _caller(session, row) if right else None


_BY_ID = _CALLERS.where(_KEYS.id == bindparam("id"))


def caller_of(session: Session, key_id: str) -> Caller | None:
    """Return the caller with the key of this id; None for an unknown, expired or revoked one."""
    return _caller(session, session.execute(_BY_ID, {"id": key_id}).one_or_none())


def searched(session: Session, caller: Caller, ids: int = 1) -> str:
    """Record that the caller learns whether a person, or one of several ids, is in the data; return the search's id.

    The ids are not written down, only how many they are.
    """
    search = new_id()
    record(session, caller.tenant_id, "people.searched", search=search, ids=ids)
    return search


def list_actors(session: Session, tenant_id: str = DEFAULT_TENANT) -> Sequence[ActorName]:
    """Return all actors of a tenant, oldest first, erased names included."""
    rows = select(ActorName).where(ActorName.tenant_id == tenant_id).order_by(ActorName.created_at, ActorName.id)
    return session.scalars(rows).all()


def find_actor(session: Session, tenant_id: str, actor_id: str) -> ActorName | None:
    """Return the tenant's actor; None: there is none."""
    found = session.get(ActorName, actor_id)
    return None if found is None or found.tenant_id != tenant_id else found


def name_actor(session: Session, actor: ActorName, name: str | None) -> None:
    """Give the actor a name, or erase it with None. The labels of the actor's keys, which may hold it, go with it;
    so does the digest by which a proxy's next call would find the actor.

    What the actor consented to lapses: behind a proxy the same person would come back as a new actor, and second it.
    The audit log keeps the opaque id, and that it was renamed or erased.
    """
    actor.name = name
    if name is None:
        actor.proxy_digest = None
        session.execute(update(ApiKey).where(ApiKey.actor_id == actor.id).values(label=""))
        session.execute(delete(Consent).where(Consent.actor_id == actor.id))
    record(session, actor.tenant_id, "actor.erased" if name is None else "actor.renamed", whose=actor.id)


def _new_actor(session: Session, tenant_id: str, name: str) -> str:
    row = ActorName(id=new_id(), tenant_id=tenant_id, name=name or None, created_at=now(session))
    session.add(row)
    session.flush()
    return row.id


def _caller(session: Session, row: Any) -> Caller | None:
    if row is None or row.revoked_at is not None:
        return None
    if row.expires_at is not None and row.expires_at <= now(session):
        return None
    return Caller(row.tenant_id, row.id, frozenset(row.scopes), row.actor_id, row.origin or row.actor_id)
