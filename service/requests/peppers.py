"""What a change of the pepper leaves behind: which stored digests can still be matched only under which pepper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from sqlalchemy import ColumnElement, Select, exists, func, or_, select, true
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.infra.db import Busy, Database, now
from service.infra.pseudonyms import Pepper
from service.infra.tables import (
    ApiKey,
    Certificate,
    DeletionRequest,
    Generation,
    Hold,
    Membership,
    SuppressionEntry,
    WebhookEndpoint,
)
from service.requests.reasons import Reason
from service.requests.webhooks import pepper_of

UNKNOWN = "unknown"
"""of an API key that was made before migration 0009"""


def aware(database: Database, pepper: Pepper) -> Pepper:
    """The pepper, told which others the generations were prepared under; as it is where the database cannot tell
    yet.
    """
    manifests = select(Generation.manifest).where(Generation.status.in_(("preparing", "candidate", "live")))
    try:
        with database.read() as session:
            named = {
                manifest["pepper_id"] for manifest in session.scalars(manifests) if manifest and "pepper_id" in manifest
            }
    except (Busy, SQLAlchemyError):
        return pepper
    return replace(pepper, lacking=frozenset(named - {each.id for each in pepper.every}))


def needed(session: Session, pepper: Pepper) -> dict[str, dict[str, int]]:
    """By pepper id: how many rows of which table can be matched only under it."""
    found: dict[str, dict[str, int]] = {}
    for table, counts in _counts(session, pepper):
        for pepper_id, count in counts.items():
            found.setdefault(pepper_id, {})[table] = count
    return found


def uncovered_suppressions(session: Session, covering: Collection[str], tenant_id: str | None = None) -> dict[str, int]:
    """How many suppression entries that count, or would, nobody can match under the peppers ``covering`` (ids): by
    pepper id.

    A request that was rekeyed has as many under one of these as under the pepper that it was made with.
    """
    counts = or_(SuppressionEntry.lifted_at.is_(None), SuppressionEntry.lifted_reason == Reason.UNVERIFIED)
    foreign = select(SuppressionEntry.request_id).where(counts, SuppressionEntry.pepper_id.not_in(covering))
    query = (
        select(SuppressionEntry.request_id, SuppressionEntry.pepper_id, func.count())
        .where(counts, SuppressionEntry.request_id.in_(foreign))
        .group_by(SuppressionEntry.request_id, SuppressionEntry.pepper_id)
    )
    return _uncovered(
        session, query if tenant_id is None else query.where(SuppressionEntry.tenant_id == tenant_id), covering
    )


def uncovered_holds(session: Session, covering: Collection[str], tenant_id: str | None = None) -> dict[str, int]:
    """How many holds in force nobody can match under the peppers ``covering`` (ids): by pepper id."""
    root = func.coalesce(Hold.twin_of, Hold.id)
    query = select(root, Hold.pepper_id, func.count()).where(Hold.lifted_at.is_(None)).group_by(root, Hold.pepper_id)
    return _uncovered(session, query if tenant_id is None else query.where(Hold.tenant_id == tenant_id), covering)


def _uncovered(session: Session, query: Select[str, str, int], covering: Collection[str]) -> dict[str, int]:
    """The query tells (what belongs together, pepper id, how many)."""
    groups: dict[str, dict[str, int]] = {}
    for group, pepper_id, count in session.execute(query):
        groups.setdefault(group, {})[pepper_id] = count
    found: Counter[str] = Counter()
    for counts in groups.values():
        covered = max((count for pepper_id, count in counts.items() if pepper_id in covering), default=0)
        found.update({name: count for name, count in counts.items() if name not in covering and count > covered})
    return dict(found)


def _counts(session: Session, pepper: Pepper) -> Iterator[tuple[str, Mapping[str, int]]]:
    yield "memberships", _by_pepper(session, Membership.pepper_id)
    yield "suppressions", uncovered_suppressions(session, {pepper.id})
    yield "holds", uncovered_holds(session, {pepper.id})
    waiting = exists().where(Certificate.request_id == DeletionRequest.id, Certificate.issued_at.is_(None))
    yield "deletion_requests", _by_pepper(session, DeletionRequest.pepper_id, waiting)
    stands = ApiKey.revoked_at.is_(None) & func.coalesce(ApiKey.expires_at > now(session), true())
    yield "api_keys", _by_pepper(session, func.coalesce(ApiKey.pepper_id, UNKNOWN), stands)
    endpoints = session.scalars(select(WebhookEndpoint).where(WebhookEndpoint.disabled_at.is_(None)))
    yield "webhook_endpoints", Counter(pepper_of(pepper, endpoint).id for endpoint in endpoints)


def _by_pepper(
    session: Session, column: ColumnElement[str] | InstrumentedAttribute[str], *conditions: ColumnElement[bool]
) -> dict[str, int]:
    rows = session.execute(select(column, func.count()).where(*conditions).group_by(column))
    return {pepper_id: count for pepper_id, count in rows}
