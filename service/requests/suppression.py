"""Who must never come back: which samples of a generation a request, or every suppression entry, names.

A suppression entry counts for a model when it is not lifted and its request is about the model
(``service.requests.concerns``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.infra.tables import (
    DeletionRequest,
    Forgotten,
    HoldoutPerson,
    Membership,
    Model,
    SuppressionEntry,
    Task,
    Version,
)
from service.requests.concerns import concerns, registration_of
from service.requests.reasons import Reason

_CHUNK = 500  # SQLite allows 32,766 variables in a statement; PostgreSQL plans short lists better


def matches(session: Session, generation_id: int, subject_digest: str | None, sample_digests: Sequence[str]) -> bool:
    """Whether the generation was trained on this subject, or on any of these samples (forgotten since or not)."""
    here = Membership.generation_id == generation_id
    if subject_digest is not None:
        return _any(session, and_(here, Membership.subject_digest == subject_digest))
    return any(_any(session, and_(here, Membership.sample_digest.in_(part))) for part in _chunks(sample_digests))


def in_holdout(session: Session, tenant_id: str, subjects: Sequence[str], generation_id: int | None = None) -> bool:
    """Whether one of these digests has a sample in the holdout of the generation, or of any that serves the tenant."""
    rows = select(HoldoutPerson.generation_id).where(HoldoutPerson.subject_digest.in_(subjects))
    if generation_id is not None:
        return session.scalar(rows.where(HoldoutPerson.generation_id == generation_id).limit(1)) is not None
    serving = select(Model.generation_id).where(Model.tenant_id == tenant_id, Model.generation_id.is_not(None))
    return session.scalar(rows.where(HoldoutPerson.generation_id.in_(serving)).limit(1)) is not None


class CarriedOut(NamedTuple):
    """Where a request was carried out: the version that lacks whom it names."""

    request: str
    model: str
    version: int


def carried_out(
    session: Session, tenant_id: str, subject_digest: str | None, sample_digests: Sequence[str] = ()
) -> list[CarriedOut]:
    """Which requests in force had this subject, or one of these samples, forgotten, and in which versions.

    A generation that ended keeps no memberships; requests and versions tell it all the same.
    """
    query = (
        select(SuppressionEntry.request_id, Model.name, Version.number)
        .join(Task, Task.request_id == SuppressionEntry.request_id)
        .join(Model, Model.id == Task.model_id)
        .join(Version, Version.id == Task.version_id)
        .where(SuppressionEntry.tenant_id == tenant_id, SuppressionEntry.lifted_at.is_(None), Task.samples > 0)
        .distinct()
    )
    if subject_digest is not None:
        conditions = [SuppressionEntry.subject_digest == subject_digest]
    else:
        conditions = [SuppressionEntry.sample_digest.in_(part) for part in _chunks(sample_digests)]
    found = {CarriedOut(*row) for condition in conditions for row in session.execute(query.where(condition))}
    return sorted(found, key=lambda each: (each.model, each.version, each.request))


def effective(session: Session, tenant_id: str) -> frozenset[str]:
    """The requests, in force or not, that had somebody forgotten, or kept somebody out, in any model of the tenant.

    Versions are not asked for: a restored backup may lack the one that a request was carried out in.
    """
    done = or_(Task.status == "completed", Task.reason == Reason.AWAITING_CONSUMERS)
    query = select(Task.request_id).where(Task.tenant_id == tenant_id, Task.samples > 0, done).distinct()
    return frozenset(session.scalars(query))


def exceeds(session: Session, generation_id: int, subject_digest: str, count: int) -> bool:
    """Whether the generation was trained on more than ``count`` samples of the subject; no further ones are counted."""
    named = select(Membership.position).where(
        Membership.generation_id == generation_id, Membership.subject_digest == subject_digest
    )
    return session.scalar(select(func.count()).select_from(named.limit(count + 1).subquery())) == count + 1


def related(session: Session, request: DeletionRequest, limit: int = 50) -> list[str]:
    """Ids of the tenant's other requests that name the same subject or one of the same samples, newest first.

    They are told, never suppressed: a request that nobody verified must not stand in the way of one that was.
    """
    ours, theirs = aliased(SuppressionEntry), aliased(SuppressionEntry)
    same = or_(ours.subject_digest == theirs.subject_digest, ours.sample_digest == theirs.sample_digest)
    query = (
        select(theirs.request_id, func.max(theirs.created_at))
        .join(ours, same)
        .where(ours.request_id == request.id, theirs.request_id != request.id)
        .where(theirs.tenant_id == request.tenant_id)
        .group_by(theirs.request_id)
        .order_by(func.max(theirs.created_at).desc(), theirs.request_id)
        .limit(limit)
    )
    return [request_id for request_id, _ in session.execute(query)]


def positions(
    session: Session, tenant_id: str, model_name: str, generation_id: int, request_ids: Iterable[str] | None = None
) -> dict[str, set[int]]:
    """For each request, the positions of the generation that its suppression entries name and that are not forgotten
    yet.

    ``request_ids`` None: every request of the tenant. Requests that name nothing are absent.
    """
    by_subject: dict[str, list[str]] = {}
    by_sample: dict[str, list[str]] = {}
    for request_id, subject, sample in _stones(session, tenant_id, (model_name, generation_id), request_ids):
        named, name = (by_subject, subject) if subject is not None else (by_sample, sample)
        named.setdefault(name or "", []).append(request_id)
    found: dict[str, set[int]] = {}
    for column, requests in ((Membership.subject_digest, by_subject), (Membership.sample_digest, by_sample)):
        for name, position in _outstanding(session, generation_id, column, requests):
            for request_id in requests[name]:
                found.setdefault(request_id, set()).add(position)
    return found


def _stones(
    session: Session, tenant_id: str, place: tuple[str, int], request_ids: Iterable[str] | None
) -> Iterator[tuple[str, str | None, str | None]]:
    """(request, subject, sample) of the suppression entries in force that concern ``place``: a model's name, and a
    generation.
    """
    model_name, generation_id = place
    registration = cache(lambda: registration_of(session, generation_id))
    columns = (SuppressionEntry.request_id, SuppressionEntry.subject_digest, SuppressionEntry.sample_digest)
    query = (
        select(*columns, DeletionRequest.models, DeletionRequest.suppress_after)
        .join(DeletionRequest, DeletionRequest.id == SuppressionEntry.request_id)
        .where(SuppressionEntry.lifted_at.is_(None))
    )
    of_tenant = query.where(SuppressionEntry.tenant_id == tenant_id)
    # a caller's requests are its tenant's: with the tenant in the question SQLite reads all of the tenant's rows
    parts = (
        [of_tenant]
        if request_ids is None
        else (query.where(SuppressionEntry.request_id.in_(part)) for part in _chunks(request_ids))
    )
    for part in parts:
        for request_id, subject, sample, models, after in session.execute(part):
            # most requests name no model: only the others ask when this one was registered
            if models is None or concerns(models, after, model_name, registration()):
                yield request_id, subject, sample


def _outstanding(
    session: Session, generation_id: int, column: InstrumentedAttribute[str], names: Iterable[str]
) -> Iterator[tuple[str, int]]:
    """(name, position) of those memberships that are not forgotten.

    Asked by lists of names, not by a join with the suppression entries: without statistics SQLite answers the join by
    reading the whole generation for every suppression entry (measured: 2 ms each at 10,000 samples).
    """
    gone = exists().where(
        Forgotten.generation_id == Membership.generation_id, Forgotten.position == Membership.position
    )
    query = select(column, Membership.position).where(Membership.generation_id == generation_id, ~gone)
    for part in _chunks(names):
        for row in session.execute(query.where(column.in_(part))):
            yield row[0], row[1]


def _any(session: Session, condition: ColumnElement[bool]) -> bool:
    return bool(session.scalar(select(exists().where(condition))))


def _chunks(values: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(values)
    while part := list(islice(rest, _CHUNK)):
        yield part
