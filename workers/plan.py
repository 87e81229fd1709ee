"""What a batch of deletions means for a lineage: which positions go, which tasks are empty, which must be held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, select, union
from sqlalchemy.orm import Session

from service import tombstones
from service.records import DeletionRequest, Forgotten, Hold, Membership, Tombstone
from unlearning.policy import Granularity
from workers.jobs import Claimed, Deletions
from workers.keystore import BATCH, batches


@dataclass(frozen=True)
class Target:
    """Who goes: sorted positions and holders, and how many people they are."""

    positions: tuple[int, ...] = ()
    holders: tuple[str, ...] = ()
    people: int = 0


@dataclass(frozen=True)
class Plan:
    """Each task of the batch stands in exactly one of three: to forget (with its positions), empty, held."""

    forget: Mapping[Claimed, frozenset[int]]
    empty: Mapping[Claimed, str]
    held: Mapping[Claimed, str]
    target: Target


def plan(session: Session, job: Deletions, atomic: bool) -> Plan:
    """Read what the tasks name. ``atomic``: a holder has one vector, and goes whole or not at all."""
    found = tombstones.positions(
        session, job.tenant_id, job.model_name, job.lineage_id, [task.request_id for task in job.tasks]
    )
    named = {task: frozenset(found[task.request_id]) for task in job.tasks if task.request_id in found}
    empty = {task: _why_empty(session, job, task) for task in job.tasks if task not in named}
    under_hold = held_positions(session, job.tenant_id, job.lineage_id)
    held = {task: "legal_hold" for task, positions in named.items() if positions & under_hold}
    forget = {task: positions for task, positions in named.items() if task not in held}
    if atomic and job.policy.granularity is Granularity.SUBJECT:
        partial = _partial(session, job.lineage_id, forget)
        held |= dict.fromkeys(partial, "partial_subject")
        forget = {task: positions for task, positions in forget.items() if task not in partial}
    return Plan(forget, empty, held, target_of(session, job.lineage_id, frozenset().union(*forget.values())))


def target_of(session: Session, lineage_id: int, positions: Iterable[int]) -> Target:
    """The target that these positions make."""
    wanted = tuple(sorted(positions))
    holders: set[str] = set()
    people: set[str] = set()
    for batch in batches(wanted, BATCH):
        columns = select(Membership.holder, Membership.subject_digest)
        rows = session.execute(columns.where(Membership.lineage_id == lineage_id, Membership.position.in_(batch)))
        for holder, subject in rows:
            holders.add(holder)
            people.add(subject)
    return Target(wanted, tuple(sorted(holders)), len(people))


def held_positions(session: Session, tenant_id: str, lineage_id: int) -> frozenset[int]:
    """The positions of the lineage that a legal hold in force protects, by a subject or by the sample."""

    def under(same: ColumnElement[bool]) -> Select[int]:
        query = select(Membership.position).join(Hold, same)
        return query.where(Membership.lineage_id == lineage_id, Hold.tenant_id == tenant_id, Hold.released_at.is_(None))

    by_subject = under(Membership.subject_digest == Hold.subject_digest)
    by_sample = under(Membership.sample_digest == Hold.sample_digest)
    return frozenset(session.scalars(union(by_subject, by_sample)))


def forgotten(session: Session, lineage_id: int) -> frozenset[int]:
    """Every position of the lineage that is forgotten."""
    return frozenset(session.scalars(select(Forgotten.position).where(Forgotten.lineage_id == lineage_id)))


def _why_empty(session: Session, job: Deletions, task: Claimed) -> str:
    """``already_forgotten`` where the lineage knew the request's samples, ``no_match`` where it never did."""
    request = session.get_one(DeletionRequest, task.request_id)
    samples = session.scalars(
        select(Tombstone.sample_digest).where(
            Tombstone.request_id == task.request_id, Tombstone.sample_digest.is_not(None)
        )
    ).all()
    named = [sample for sample in samples if sample is not None]
    known = tombstones.matches(session, job.lineage_id, request.subject_digest, named)
    return "already_forgotten" if known else "no_match"


def _partial(session: Session, lineage_id: int, forget: Mapping[Claimed, frozenset[int]]) -> frozenset[Claimed]:
    """The tasks that would take only part of some holder's samples, even together with the rest of the batch."""
    if not _named_by_sample(session, [task.request_id for task in forget]):
        return frozenset()
    gone = forgotten(session, lineage_id)
    partial: set[Claimed] = set()
    while True:
        left = {task: positions for task, positions in forget.items() if task not in partial}
        going = frozenset().union(*left.values())
        holders = target_of(session, lineage_id, going).holders
        torn = _positions_of(session, lineage_id, holders) - going - gone
        torn_holders = set(target_of(session, lineage_id, torn).holders)
        split = _positions_of(session, lineage_id, torn_holders)
        found = {task for task, positions in left.items() if positions & split}
        if not found:
            return frozenset(partial)
        partial |= found


def _named_by_sample(session: Session, request_ids: Iterable[str]) -> bool:
    """Whether any of the requests names samples; a request that names a subject takes every sample of its holders."""
    return any(
        session.scalar(
            select(Tombstone.id).where(Tombstone.request_id.in_(batch), Tombstone.sample_digest.is_not(None)).limit(1)
        )
        for batch in batches(request_ids, BATCH)
    )


def _positions_of(session: Session, lineage_id: int, holders: Iterable[str]) -> frozenset[int]:
    found: set[int] = set()
    for batch in batches(holders, BATCH):
        query = select(Membership.position).where(Membership.lineage_id == lineage_id, Membership.holder.in_(batch))
        found.update(session.scalars(query))
    return frozenset(found)
