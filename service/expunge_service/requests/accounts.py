"""What became of each id and sample that a request names: deleted by it, deleted before, in a holdout, or not found."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Generation,
    HoldoutPerson,
    Membership,
    Model,
    Removal,
    SuppressionEntry,
    Task,
    Version,
)
from expunge_service.requests.suppression import named_by

_SERVED = ("live", "exhausted")
HOLDOUT_NAMED = "holdout_named"
"""the note in a generation's manifest whether its recipe names the people of the holdout; one of before the note did
where any person is listed
"""


@dataclass(frozen=True)
class Departure:
    """A version, the first without some records that its model was trained on before."""

    model: str
    number: int
    published_at: int
    """in microseconds since 1970"""
    version_id: str
    claim: Mapping[str, Any] = field(compare=False)


class _Left(NamedTuple):
    """A sample that left with a version, and the name of the request that it was found under."""

    name: str
    sample: str
    departure: Departure


@dataclass(frozen=True)
class Account:
    """What became of one id or sample that a request names.

    Args:
        deleted: the request deleted records under it from a model.
        before: the versions with which other requests had deleted it, the last one of each model, by name.
        in_holdout: a model has records of the person in its holdout.
    """

    deleted: bool
    before: tuple[Departure, ...]
    in_holdout: bool


def names_in(session: Session, request: DeletionRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keyed digests of the subjects and of the samples that the request names, sorted."""
    rows = named_by(session, request)
    subjects = {subject for subject, _ in rows if subject is not None}
    return tuple(sorted(subjects)), tuple(sorted({sample for _, sample in rows if sample is not None}))


def accounts_of(
    session: Session, request: DeletionRequest, subjects: Collection[str], samples: Collection[str]
) -> tuple[Account, ...] | None:
    """Return what became of each of these names of a request that is completed, or is about to be.

    None: it is not on record which of several names the request deleted. Samples that a training left out are counted
    and not listed, and a generation that ended keeps no people.
    """
    names, own = subjects or samples, _own(session, request)
    left = list(_removed(session, request, subjects, samples))
    found = {each.name for each in left}
    if subjects:
        left += _of_other_requests(session, request, subjects)
    elif not found.issuperset(samples):
        left += _logged(session, request, frozenset(samples))
    listed: dict[str, set[str]] = {version: set() for version in own}
    departures: dict[str, set[Departure]] = {name: set() for name in names}
    for name, sample, departure in left:
        departures[name].add(departure)
        listed.get(departure.version_id, set()).update({sample} - {""})
    unlisted = [version for version, count in own.items() if len(listed[version]) < count]
    if unlisted and len(names) == 1:
        (theirs,) = departures.values()
        theirs.update(_versions(session, unlisted))
    elif unlisted and not all(departures.values()):
        return None
    held_out = _held_out(session, request, subjects)
    ended = request.completed_at
    return tuple(_account(departures[name], own, ended, name in held_out) for name in names)


def foreseen_accounts(
    session: Session, request: DeletionRequest, subjects: Collection[str], samples: Collection[str]
) -> tuple[Account, ...]:
    """Return what would become of each name of a request that is in no table, if it were carried out now."""
    there = {name for name, _ in _outstanding(session, request, subjects, samples)}
    accounts = accounts_of(session, request, subjects, samples) or ()
    return tuple(replace(each, deleted=name in there) for name, each in zip(subjects or samples, accounts, strict=True))


def foreseen_records(
    session: Session, request: DeletionRequest, subjects: Collection[str], samples: Collection[str]
) -> int:
    """Return how many distinct records such a request would delete."""
    return len({sample for _, sample in _outstanding(session, request, subjects, samples)})


def _outstanding(
    session: Session, request: DeletionRequest, subjects: Collection[str], samples: Collection[str]
) -> set[tuple[str, str]]:
    """Return the names with their samples that served models were trained on and did not forget."""
    column, names = (Membership.subject_digest, subjects) if subjects else (Membership.sample_digest, samples)
    gone = exists().where(Removal.generation_id == Membership.generation_id, Removal.position == Membership.position)
    serving = session.scalars(select(Model.generation_id).where(*_covered(request), Model.status.in_(_SERVED))).all()
    query = select(column, Membership.sample_digest).where(Membership.generation_id.in_(serving), ~gone)
    return {
        (name, sample) for part in batches(names) for name, sample in session.execute(query.where(column.in_(part)))
    }


def unnamed_holdouts(session: Session, request: DeletionRequest) -> list[str]:
    """Return the served models that the request is about and that measure themselves on records of unnamed people."""
    named = select(HoldoutPerson.generation_id).where(HoldoutPerson.generation_id == Generation.id).exists()
    query = (
        select(Model.name, Generation.manifest, named)
        .join(Generation, Generation.id == Model.generation_id)
        .where(*_covered(request), Model.status.in_(_SERVED))
    )
    rows = session.execute(query.order_by(Model.name)).all()
    return [name for name, manifest, any_named in rows if not (manifest or {}).get(HOLDOUT_NAMED, any_named)]


def _account(departures: Collection[Departure], own: Collection[str], ended: int | None, held_out: bool) -> Account:
    last: dict[str, Departure] = {}
    for each in sorted(departures, key=lambda each: (each.model, each.number)):
        if each.version_id not in own and (ended is None or each.published_at <= ended):
            last[each.model] = each
    return Account(any(each.version_id in own for each in departures), tuple(last.values()), held_out)


def _own(session: Session, request: DeletionRequest) -> dict[str, int]:
    """Return the versions, by id, with which the request itself deleted samples, and how many."""
    mine = select(Task.version_id, Task.samples).where(Task.request_id == request.id, Task.samples > 0)
    return {version: count or 0 for version, count in session.execute(mine) if version is not None}


def _covered(request: DeletionRequest) -> list[ColumnElement[bool]]:
    """Select the models that the request is about."""
    mine = [Model.tenant_id == request.tenant_id]
    return mine if request.models is None else [*mine, Model.name.in_(request.models)]


_DEPARTURE = (Model.name, Version.number, Version.published_at, Version.id, Version.claim)


def _removed(
    session: Session, request: DeletionRequest, subjects: Collection[str], samples: Collection[str]
) -> Iterator[_Left]:
    """Yield the samples of these names that were removed from the generations that are served."""
    column = Membership.subject_digest if subjects else Membership.sample_digest
    serving = session.scalars(select(Model.generation_id).where(*_covered(request), Model.generation_id.is_not(None)))
    query = (
        select(column, Membership.sample_digest, *_DEPARTURE)
        .join(
            Removal,
            (Removal.generation_id == Membership.generation_id) & (Removal.position == Membership.position),
        )
        .join(Version, Version.id == Removal.version_id)
        .join(Model, Model.id == Version.model_id)
        .where(Membership.generation_id.in_(serving.all()))
    )
    for part in batches(subjects or samples):
        for name, sample, *departure in session.execute(query.where(column.in_(part))):
            yield _Left(name, sample, Departure(*departure))


def _of_other_requests(session: Session, request: DeletionRequest, subjects: Collection[str]) -> Iterator[_Left]:
    """Yield the subjects with the versions of other requests in force that name them, without the samples.

    A generation that ended keeps no people, so that the requests are what is left.
    """
    query = (
        select(SuppressionEntry.subject_digest, *_DEPARTURE)
        .join(Task, Task.request_id == SuppressionEntry.request_id)
        .join(Version, Version.id == Task.version_id)
        .join(Model, Model.id == Version.model_id)
        .where(*_covered(request), SuppressionEntry.tenant_id == request.tenant_id)
        .where(SuppressionEntry.request_id != request.id, SuppressionEntry.lifted_at.is_(None), Task.samples > 0)
    )
    for name, *departure in session.execute(query.where(SuppressionEntry.subject_digest.in_(subjects))):
        yield _Left(name or "", "", Departure(*departure))


def _logged(session: Session, request: DeletionRequest, samples: frozenset[str]) -> Iterator[_Left]:
    """Yield these samples with the versions that the audit log says they left with."""
    models = session.scalars(select(Model.id).where(*_covered(request))).all()
    entries = select(AuditEntry.body).where(
        AuditEntry.tenant_id == request.tenant_id,
        AuditEntry.kind == "version.published",
        AuditEntry.model_id.in_(models),
    )
    gone: dict[str, frozenset[str]] = {}
    for body in map(json.loads, session.scalars(entries)):
        theirs = samples.intersection(body.get("samples") or ())
        if theirs:
            gone[body["version"]] = theirs
    for departure in _versions(session, gone):
        for sample in gone[departure.version_id]:
            yield _Left(sample, sample, departure)


def _versions(session: Session, ids: Collection[str]) -> list[Departure]:
    query = select(*_DEPARTURE).join(Model, Model.id == Version.model_id)
    return [Departure(*row) for part in batches(ids) for row in session.execute(query.where(Version.id.in_(part)))]


def _held_out(session: Session, request: DeletionRequest, subjects: Collection[str]) -> frozenset[str]:
    query = select(HoldoutPerson.subject_digest).join(Model, Model.generation_id == HoldoutPerson.generation_id)
    return frozenset(session.scalars(query.where(*_covered(request), HoldoutPerson.subject_digest.in_(subjects))))
