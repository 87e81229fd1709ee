"""Decide what a batch of deletions means for a generation: which positions are forgotten, which tasks are empty or
blocked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, select, union
from sqlalchemy.orm import Session, aliased

from expunge_service import requests
from expunge_service.infra.db import NOW, batches, now
from expunge_service.infra.tables import (
    Generation,
    Hold,
    Membership,
    Removal,
    StoredVector,
    SuppressionEntry,
    Task,
    Version,
)
from expunge_service.queue.jobs import ClaimedTask, Deletions, Job, Preparation
from expunge_service.queue.results import Blocked, Completed
from expunge_service.requests import Cause, Reason
from unlearning.accounting.policy import Granularity


@dataclass(frozen=True)
class Target:
    """What is forgotten: sorted positions, the holders of their rows, and the number of people."""

    positions: tuple[int, ...] = ()
    holders: tuple[str, ...] = ()
    people: int = 0


@dataclass(frozen=True)
class ForgottenCount:
    """How much is forgotten in this update."""

    samples: int = 0
    people: int = 0
    unlearned: int = 0
    """the people that the method forgets; a candidate's first version also lacks people whom it never trained on"""


@dataclass(frozen=True)
class Selection:
    """A batch of tasks. Each is in exactly one of three: to forget (with its positions), empty, blocked."""

    forget: Mapping[ClaimedTask, frozenset[int]]
    empty: Mapping[ClaimedTask, Completed]
    blocked: Mapping[ClaimedTask, Blocked]
    target: Target
    names: requests.Names
    """what the requests of the tasks name"""


class Member(NamedTuple):
    """A sample of a generation under one of its subjects."""

    position: int
    subject: str
    sample: str
    holder: str
    held: bool
    """a legal hold in force protects the position"""
    kept: bool
    """the holder has a vector"""


@dataclass(frozen=True)
class Served:
    """What an update starts from."""

    version: Version
    generation: Generation
    updates: int
    """of the generation, that led to the version; what built the generation counts if it forgot people"""
    unlearned: int
    """people that the method has forgotten so far, where a calibration measured a limited number; else 0"""
    at: int
    """when this was read, on the database's clock"""


def served(session: Session, job: Deletions) -> Served:
    """Return the version that the update replaces, and what its generation fixed at registration."""
    generation, version, before, at = session.execute(
        _SERVED, {"generation": job.generation_id, "version": job.current_id}
    ).one()
    limited = (generation.manifest or {}).get("design") is not None
    unlearned = _unlearned(session, generation) if limited else 0
    return Served(version, generation, _updates(session, version, before), unlearned, at)


_PARENT = aliased(Version)
_SERVED = (
    select(Generation, Version, _PARENT.generation_id, NOW)
    .select_from(Generation)
    .join(Version, Version.id == bindparam("version"))
    .outerjoin(_PARENT, _PARENT.id == Version.parent_id)
    .where(Generation.id == bindparam("generation"))
)


def _updates(session: Session, version: Version, before: int | None) -> int:
    """Return ``Served.updates``. ``before``: the generation of the version's parent."""
    if before == version.generation_id:
        return int(version.claim["updates"])
    forgot = Removal.version_id == version.id, Removal.generation_id == version.generation_id
    return int(session.scalar(select(Removal.position).where(*forgot).limit(1)) is not None)


def _unlearned(session: Session, generation: Generation) -> int:
    gone = select(Removal.position).where(Removal.generation_id == generation.id)
    people = select(func.count(Membership.holder.distinct())).where(Membership.generation_id == generation.id)
    return session.scalar(people.where(Membership.position.in_(gone))) or 0


def plan(session: Session, job: Deletions, atomic: bool) -> Selection:
    """Read what the tasks name. ``atomic``: a holder has one vector, and all its samples are forgotten or none."""
    place = job.model_name, job.generation_id
    names = requests.names_of(session, job.tenant_id, place, [task.request_id for task in job.tasks])
    rows = members(session, job, names)
    found = named_by(names, rows)
    named = {task: found[task.request_id] for task in job.tasks if task.request_id in found}
    empty = why_empty(session, job, [task for task in job.tasks if task not in named])
    under_hold = frozenset(row.position for row in rows if row.held)
    blocked = {task: Blocked(Reason.LEGAL_HOLD) for task, positions in named.items() if positions & under_hold}
    forget = {task: positions for task, positions in named.items() if task not in blocked}
    if atomic and names.samples and job.policy.granularity is Granularity.SUBJECT:
        torn = partial(session, job.generation_id, {task.request_id: positions for task, positions in forget.items()})
        blocked |= {task: Blocked(Reason.PARTIAL_SUBJECT) for task in forget if task.request_id in torn}
        forget = {task: positions for task, positions in forget.items() if task not in blocked}
    if atomic:
        lacking = frozenset(row.position for row in rows if not row.kept)
        why = Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.VECTORS_MISSING})
        blocked |= {task: why for task, positions in forget.items() if positions & lacking}
        forget = {task: positions for task, positions in forget.items() if task not in blocked}
    going = frozenset().union(*forget.values())
    leaving = [row for row in rows if row.position in going]
    holders, people = {row.holder for row in leaving}, {row.subject for row in leaving}
    target = Target(tuple(sorted(going)), tuple(sorted(holders)), len(people))
    return Selection(forget, empty, blocked, target, names)


_M, _N = Membership.__table__.alias("m"), Membership.__table__.alias("n")
_HERE = _N.c.generation_id == bindparam("generation")
_HOLD = and_(Hold.tenant_id == bindparam("tenant"), Hold.lifted_at.is_(None))
_NAMED, _HELD = (
    union(*(select(_N.c.position).where(_HERE, which) for which in either))
    for either in (
        (
            _N.c.subject_digest.in_(bindparam("subjects", expanding=True)),
            _N.c.sample_digest.in_(bindparam("samples", expanding=True)),
        ),
        (
            _N.c.subject_digest.in_(select(Hold.subject_digest).where(_HOLD)),
            _N.c.sample_digest.in_(select(Hold.sample_digest).where(_HOLD)),
        ),
    )
)
_GONE = select(Removal.position).where(Removal.generation_id == _M.c.generation_id, Removal.position == _M.c.position)
_VECTOR = select(StoredVector.holder).where(
    StoredVector.generation_id == _M.c.generation_id, StoredVector.holder == _M.c.holder
)
_MEMBERS = (
    select(_M.c.position, _M.c.subject_digest, _M.c.sample_digest, _M.c.holder, _M.c.position.in_(_HELD))
    .add_columns(_VECTOR.exists())
    .where(_M.c.generation_id == bindparam("generation"), _M.c.position.in_(_NAMED), ~_GONE.exists())
)


def members(session: Session, job: Job, names: requests.Names) -> frozenset[Member]:
    """Return all rows of the samples that are named and not forgotten yet, those under their other subjects too."""
    either = [("subjects", each) for each in names.subjects] + [("samples", each) for each in names.samples]
    place = {"generation": job.generation_id, "tenant": job.tenant_id}
    found: set[Member] = set()
    for batch in batches(either):
        part = {kind: [each for which, each in batch if which == kind] for kind in ("subjects", "samples")}
        found.update(Member(*row) for row in session.execute(_MEMBERS, place | part))
    return frozenset(found)


def named_by(names: requests.Names, rows: Iterable[Member]) -> dict[str, frozenset[int]]:
    """Return the positions that each request names. Requests without names are absent."""
    found: dict[str, set[int]] = {}
    for row in rows:
        for request_id in (*names.subjects.get(row.subject, ()), *names.samples.get(row.sample, ())):
            found.setdefault(request_id, set()).add(row.position)
    return {request_id: frozenset(positions) for request_id, positions in found.items()}


@dataclass(frozen=True)
class Outstanding:
    """What all suppression entries name in a generation and is not forgotten yet, and what of it must stay for now."""

    named: Mapping[str, frozenset[int]]
    protected: frozenset[int]
    """under a legal hold"""
    partial: frozenset[str]
    """requests for part of a holder, where a holder is forgotten as a whole"""
    later: frozenset[str]
    """requests that can still be cancelled, or wait for an approval"""

    @property
    def going(self) -> frozenset[int]:
        """Return the positions to forget now."""
        stay = self.partial | self.later
        free = (p for request, p in self.named.items() if request not in stay and p.isdisjoint(self.protected))
        return frozenset().union(*free)


def asked(session: Session, job: Job) -> Outstanding:
    """Read every suppression entry that concerns the generation of the job."""
    later = frozenset(session.scalars(select(Task.request_id).where(undecided(job.model_id, now(session)))))
    found = requests.positions(session, job.tenant_id, job.model_name, job.generation_id)
    named = {request: frozenset(positions) for request, positions in found.items()}
    protected = protected_positions(session, job)
    torn: frozenset[str] = frozenset()
    if job.policy.granularity is Granularity.SUBJECT and _has_vectors(session, job.generation_id):
        free = {r: p for r, p in named.items() if r not in later and p.isdisjoint(protected)}
        torn = partial(session, job.generation_id, free)
    return Outstanding(named, protected, torn, later)


def undecided(model_id: str, at: int) -> ColumnElement[bool]:
    """Select the model's tasks that may not be carried out yet: they can be cancelled, or wait for an approval.

    ``at``: now, in microseconds.
    """
    inside = (Task.status == "queued") & (Task.not_before > at)
    large = (Task.status == "blocked") & (Task.reason == Reason.LARGE)
    return (Task.model_id == model_id) & (inside | large)


def target_of(session: Session, generation_id: int, positions: Iterable[int]) -> Target:
    """Return the target that these positions make."""
    wanted = tuple(sorted(positions))
    holders: set[str] = set()
    people: set[str] = set()
    for batch in batches(wanted):
        columns = select(Membership.holder, Membership.subject_digest)
        rows = session.execute(columns.where(Membership.generation_id == generation_id, Membership.position.in_(batch)))
        for holder, subject in rows:
            holders.add(holder)
            people.add(subject)
    return Target(wanted, tuple(sorted(holders)), len(people))


def without_vector(session: Session, generation_id: int, holders: Iterable[str]) -> frozenset[str]:
    """Return the holders without a vector in the generation."""
    mine = select(StoredVector.holder).where(StoredVector.generation_id == generation_id)
    names = frozenset(holders)
    kept = (session.scalars(mine.where(StoredVector.holder.in_(batch))) for batch in batches(names))
    return names.difference(*kept)


def held_positions(session: Session, tenant_id: str, generation_id: int) -> frozenset[int]:
    """Return the positions of the generation that a legal hold in force protects, by a subject or by the sample."""

    def under(same: ColumnElement[bool]) -> Select[int]:
        query = select(Membership.position).join(Hold, same)
        return query.where(
            Membership.generation_id == generation_id, Hold.tenant_id == tenant_id, Hold.lifted_at.is_(None)
        )

    by_subject = under(Membership.subject_digest == Hold.subject_digest)
    by_sample = under(Membership.sample_digest == Hold.sample_digest)
    return frozenset(session.scalars(union(by_subject, by_sample)))


def protected_positions(session: Session, job: Job) -> frozenset[int]:
    """Return the positions of the job's generation that a legal hold keeps in it.

    In a model's first version a hold does not keep people whose request was carried out in any model: no data
    are left to keep. Later versions still have the person, and the hold keeps them.
    """
    protected = held_positions(session, job.tenant_id, job.generation_id)
    if not protected or not begins_model(job):
        return protected
    effective = requests.effective(session, job.tenant_id)
    named = requests.positions(session, job.tenant_id, job.model_name, job.generation_id, effective)
    return protected.difference(*named.values())


def begins_model(job: Job) -> bool:
    """Return whether the job prepares a model's first generation."""
    return isinstance(job, Preparation) and not job.retrains


def forgotten(session: Session, generation_id: int) -> frozenset[int]:
    """Return every position of the generation that is forgotten."""
    return frozenset(session.scalars(select(Removal.position).where(Removal.generation_id == generation_id)))


def why_empty(session: Session, job: Job, tasks: Iterable[ClaimedTask]) -> dict[ClaimedTask, Completed]:
    """Return ``already_deleted`` where the model once had the request's samples, else ``no_match`` or another outcome.

    The model's row is locked meanwhile, so all tasks are asked about at once.
    """
    by_request = {task.request_id: task for task in tasks}
    found = requests.known_of(session, job.model_id, job.generation_id, by_request)
    held_out = any(known.in_holdout for known in found.values())
    overwritten = requests.holdout_facts(session, [job.generation_id]) if held_out else {}
    empty: dict[ClaimedTask, Completed] = {}
    for request_id, task in by_request.items():
        known = found[request_id]
        if known.trained or known.earlier:
            why = Completed(0, Reason.ALREADY_DELETED, {"earlier": known.earlier} if known.earlier else {})
        elif known.in_holdout:
            why = Completed(0, Reason.IN_HOLDOUT, overwritten)
        else:
            why = Completed(0, Reason.NO_MATCH, {"cause": Cause.THIS_MODEL})
        empty[task] = why
    return empty


def partial(session: Session, generation_id: int, named: Mapping[str, frozenset[int]]) -> frozenset[str]:
    """Return the requests that would forget only part of some holder's samples, even together with the others."""
    if not _named_by_sample(session, named):
        return frozenset()
    gone = forgotten(session, generation_id)
    torn: set[str] = set()
    while True:
        left = {request: positions for request, positions in named.items() if request not in torn}
        going = frozenset().union(*left.values())
        holders = target_of(session, generation_id, going).holders
        staying = _positions_of(session, generation_id, holders) - going - gone
        split = _positions_of(session, generation_id, target_of(session, generation_id, staying).holders)
        found = {request for request, positions in left.items() if positions & split}
        if not found:
            return frozenset(torn)
        torn |= found


def _has_vectors(session: Session, generation_id: int) -> bool:
    return bool((session.get_one(Generation, generation_id).manifest or {}).get("vectors"))


def _named_by_sample(session: Session, request_ids: Iterable[str]) -> bool:
    """Return whether a request names samples. A request that names a subject takes every sample of its holders."""
    return any(
        session.scalar(
            select(SuppressionEntry.id)
            .where(SuppressionEntry.request_id.in_(batch), SuppressionEntry.sample_digest.is_not(None))
            .limit(1)
        )
        for batch in batches(request_ids)
    )


def _positions_of(session: Session, generation_id: int, holders: Iterable[str]) -> frozenset[int]:
    found: set[int] = set()
    for batch in batches(holders):
        query = select(Membership.position).where(
            Membership.generation_id == generation_id, Membership.holder.in_(batch)
        )
        found.update(session.scalars(query))
    return frozenset(found)
