"""Where a person is known: every request that concerns them, and every model that holds them or forgot them.

The person's id is digested and dropped. No row about the person is written: the caller records that a search was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from typing import Literal

from sqlalchemy import Select, exists, func, or_, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches
from expunge_service.infra.pseudonyms import Pepper, subject_digest
from expunge_service.infra.tables import (
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

MOST_REQUESTS = 500
"""in one answer, the newest"""
State = Literal["holds", "forgot", "holdout", "preparing"]


@dataclass(frozen=True)
class KnownIn:
    """One model that knows the person, or may."""

    model: str
    state: State
    """holds: trained on the person; forgot: was, and is no more; holdout: only measured on the person; preparing: its
    samples are not known yet"""
    samples: int | None
    """that it was trained on and did not forget; None while it is being prepared"""
    in_holdout: bool
    version: int | None
    """number of the last version that forgot samples of the person; None: there is none"""
    forgotten_at: int | None
    """when that version was published, in microseconds since 1970"""


@dataclass(frozen=True)
class PersonFound:
    requests: list[DeletionRequest]
    """newest first, at most ``MOST_REQUESTS``"""
    has_more: bool
    models: list[KnownIn]
    """by name"""


def find_person(session: Session, pepper: Pepper, tenant_id: str, subject_id: str) -> PersonFound:
    """Return the tenant's requests that name the person or their samples, and the models that know the person.

    Requests of every status count, also unverified, cancelled and lifted ones. Models that were refused or retired are
    named only where a version of theirs forgot the person.
    """
    person = subject_digest(pepper, tenant_id, subject_id)
    requests = _requests(session, tenant_id, person)
    models = select(Model).where(Model.tenant_id == tenant_id).order_by(Model.name)
    known = [_known_in(session, model, person) for model in session.scalars(models).all()]
    return PersonFound(
        requests[:MOST_REQUESTS], len(requests) > MOST_REQUESTS, [each for each in known if each is not None]
    )


def _requests(session: Session, tenant_id: str, person: str) -> list[DeletionRequest]:
    """Return the requests, newest first, one more than ``MOST_REQUESTS`` at most."""
    generations = select(Generation.id).where(Generation.tenant_id == tenant_id)
    theirs = select(Membership.sample_digest).where(
        Membership.generation_id.in_(generations), Membership.subject_digest == person
    )
    samples = session.scalars(theirs.distinct()).all()
    conditions = [SuppressionEntry.subject_digest == person]
    conditions += [SuppressionEntry.sample_digest.in_(part) for part in batches(samples)]
    made: dict[str, int] = {}
    for condition in conditions:
        # sorted here: asked for in the order of their moments, SQLite would read all of the tenant's entries by these
        named = select(SuppressionEntry.request_id, SuppressionEntry.created_at).where(condition)
        entries = session.execute(named.where(SuppressionEntry.tenant_id == tenant_id))
        made |= {request_id: created_at for request_id, created_at in entries}
    rows: list[DeletionRequest] = []
    for part in batches(nlargest(MOST_REQUESTS + 1, made, key=lambda request: (made[request], request))):
        rows += session.scalars(select(DeletionRequest).where(DeletionRequest.id.in_(part)))
    return sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)[: MOST_REQUESTS + 1]


def _known_in(session: Session, model: Model, person: str) -> KnownIn | None:
    """Return what the model knows of the person, or None."""
    if model.status == "preparing":
        return KnownIn(model.name, "preparing", None, in_holdout=False, version=None, forgotten_at=None)
    generation = model.generation_id or 0
    serving = model.status in ("live", "exhausted")
    samples = (session.scalar(_outstanding(generation, person)) or 0) if serving else 0
    held_out = select(exists().where(HoldoutPerson.generation_id == generation, HoldoutPerson.subject_digest == person))
    in_holdout = serving and bool(session.scalar(held_out))
    version = session.execute(_forgetting(model, person)).first()
    if not (samples or in_holdout or version):
        return None
    state: State = "holds" if samples else "forgot" if version else "holdout"
    number, at = version or (None, None)
    return KnownIn(model.name, state, samples, in_holdout, number, at)


def _outstanding(generation_id: int, person: str) -> Select[int]:
    """Count the person's samples in the generation that were not forgotten."""
    gone = exists().where(Removal.generation_id == Membership.generation_id, Removal.position == Membership.position)
    mine = (Membership.generation_id == generation_id, Membership.subject_digest == person)
    return select(func.count()).select_from(Membership).where(*mine, ~gone)


def _forgetting(model: Model, person: str) -> Select[int, int]:
    """Select the number and the moment of the model's last version that forgot samples of the person.

    A generation that ended keeps no memberships, so the tasks of the requests that name the person are read too. Those
    of requests that name samples are not: their versions may have forgotten another person's.
    """
    removed = (
        select(Removal.version_id)
        .join(
            Membership,
            (Membership.generation_id == Removal.generation_id) & (Membership.position == Removal.position),
        )
        .where(Membership.generation_id == (model.generation_id or 0), Membership.subject_digest == person)
    )
    naming = select(SuppressionEntry.request_id).where(
        SuppressionEntry.tenant_id == model.tenant_id, SuppressionEntry.subject_digest == person
    )
    carried_out = select(Task.version_id).where(
        Task.request_id.in_(naming), Task.model_id == model.id, Task.samples > 0
    )
    return (
        select(Version.number, Version.published_at)
        .where(Version.model_id == model.id, or_(Version.id.in_(removed), Version.id.in_(carried_out)))
        .order_by(Version.number.desc())
        .limit(1)
    )
