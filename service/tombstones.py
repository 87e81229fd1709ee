"""Who must never come back: which samples of a lineage a request, or every tombstone, names.

A tombstone counts for a model when it is not lifted and its request was not limited to other models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, exists, select, union_all
from sqlalchemy.orm import Session

from service.records import DeletionRequest, Forgotten, Membership, Tombstone

_CHUNK = 500  # SQLite allows 32,766 variables in a statement; PostgreSQL plans short lists better


def matches(session: Session, lineage_id: int, subject_digest: str | None, sample_digests: Sequence[str]) -> bool:
    """Whether the lineage was trained on this subject, or on any of these samples (forgotten since or not)."""
    here = Membership.lineage_id == lineage_id
    if subject_digest is not None:
        return _any(session, and_(here, Membership.subject_digest == subject_digest))
    return any(_any(session, and_(here, Membership.sample_digest.in_(part))) for part in _chunks(sample_digests))


def positions(
    session: Session, tenant_id: str, model_name: str, lineage_id: int, request_ids: Iterable[str] | None = None
) -> dict[str, set[int]]:
    """For each request, the positions of the lineage that its tombstones name and that are not forgotten yet.

    ``request_ids`` None: every request of the tenant. Requests that name nothing are absent.
    """
    found: dict[str, set[int]] = {}
    for part in [None] if request_ids is None else _chunks(request_ids):
        for request_id, models, position in session.execute(_outstanding(tenant_id, lineage_id, part)):
            if models is None or model_name in models:
                found.setdefault(request_id, set()).add(position)
    return found


def _outstanding(tenant_id: str, lineage_id: int, request_ids: list[str] | None) -> CompoundSelect[Any]:
    """Two joins rather than one with OR, so that each uses its index."""
    by_subject = _joined(tenant_id, lineage_id, Membership.subject_digest == Tombstone.subject_digest)
    by_sample = _joined(tenant_id, lineage_id, Membership.sample_digest == Tombstone.sample_digest)
    if request_ids is not None:
        chosen = Tombstone.request_id.in_(request_ids)
        by_subject, by_sample = by_subject.where(chosen), by_sample.where(chosen)
    return union_all(by_subject, by_sample)


def _joined(tenant_id: str, lineage_id: int, named: ColumnElement[bool]) -> Select[str, list[str] | None, int]:
    gone = exists().where(Forgotten.lineage_id == Membership.lineage_id, Forgotten.position == Membership.position)
    return (
        select(Tombstone.request_id, DeletionRequest.models, Membership.position)
        .join(DeletionRequest, DeletionRequest.id == Tombstone.request_id)
        .join(Membership, and_(Membership.lineage_id == lineage_id, named))
        .where(Tombstone.tenant_id == tenant_id, Tombstone.lifted_at.is_(None), ~gone)
    )


def _any(session: Session, condition: ColumnElement[bool]) -> bool:
    return bool(session.scalar(select(exists().where(condition))))


def _chunks(values: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(values)
    while part := list(islice(rest, _CHUNK)):
        yield part
