"""The transaction that publishes a generation's first version: version 1 of a model, or the switch to a retrain.

The switch is made under the model's row lock and the candidate's lease. People who were forgotten in the served
generation since the training began are not in the version that it publishes. Waiting tasks end with it, or wait for
an update of the new generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from expunge_service import requests
from expunge_service.audit import record
from expunge_service.infra.db import Database, batches, now
from expunge_service.infra.tables import Generation, Hold, Membership, Model, Removal, Task, Version
from expunge_service.models import (
    HOLDS_READ_AT,
    drop_all_vectors,
    is_port,
    model_lease,
    put_in_place,
    retrain_lease,
    schedule_retrain,
)
from expunge_service.queue.jobs import ClaimedTask, Preparation
from expunge_service.queue.journal_entry import UpdateJournal
from expunge_service.queue.leases import Stale, release
from expunge_service.queue.publication import (
    GIVE_BACK_THE_HELD,
    Draft,
    Replan,
    erase,
    make_version,
    publication,
    require_current,
    require_no_hold,
    sample_digests,
    still_there,
)
from expunge_service.queue.results import OPEN, Blocked, Completed, Postponed, Result, finish, queue_newcomers
from expunge_service.queue.selection import (
    ForgottenCount,
    Outstanding,
    Target,
    asked,
    held_positions,
    target_of,
    why_empty,
)
from expunge_service.requests import Reason


@dataclass(frozen=True)
class Leaving:
    """The people who leave the served model with a generation's first version, as the database says now."""

    target: Target
    """the people that the method still forgets in the new generation"""
    size: ForgottenCount
    """how many leave in all"""
    asked: Outstanding
    replaced: Version | None = None
    """the current version, which the switch replaces; None for version 1"""
    leaving: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """by request: the positions of the replaced generation that the new version lacks"""


def departure(session: Session, job: Preparation) -> Leaving:
    """Return the people who leave with the first version if it is drafted now: all who have asked."""
    found = asked(session, job)
    return _departure(session, job, found, target_of(session, job.generation_id, found.going))


def _departure(session: Session, job: Preparation, found: Outstanding, target: Target) -> Leaving:
    if not job.retrains:
        return Leaving(target, ForgottenCount(len(target.positions), target.people), found)
    model = session.get_one(Model, job.model_id)
    if model.current_id is None or model.generation_id is None:
        raise Stale(f"model {model.id} has no current version to replace")
    replaced = session.get_one(Version, model.current_id)
    leaving = _leaving(session, job, model.generation_id, found, target)
    going = frozenset().union(*leaving.values())
    people = target_of(session, model.generation_id, going).people
    return Leaving(target, ForgottenCount(len(going), people), found, replaced, leaving)


def publish_generation(
    database: Database,
    journal: UpdateJournal,
    job: Preparation,
    draft: Draft,
    *,
    report: Mapping[str, Any],
    left_out: Mapping[str, int],
    drafted: Leaving,
) -> None:
    """Publish a generation's first version, without the people who asked before this moment.

    ``report`` is what preparation measured; ``left_out`` counts for each request the samples of the recipe that it kept
    out of the training. An update that is computed on a replaced generation at this moment is stale afterwards: its
    tasks end here. Raises Stale, Replan, Overspent; then no row was written.
    """
    with publication(database, journal, job, draft) as (session, model, number):
        require_no_hold(session, job, draft.target)
        found = asked(session, job)
        current = _departure(session, job, found, draft.target)
        replaced = current.replaced
        if replaced is None:
            require_current(model, None)
            results = _first_results(session, job, current, left_out)
            digests = sample_digests(session, job.generation_id, draft.target.positions)
        else:
            _require_unchanged(session, job, current, drafted)
            results = _switch_results(session, job, current, replaced)
            going = frozenset().union(*current.leaving.values())
            digests = sample_digests(session, replaced.generation_id, going)
            _end_replaced(session, model, job, replaced)
        generation = session.get_one(Generation, job.generation_id)
        generation.status, generation.progress, generation.phase = "live", 1.0, None
        generation.report = (generation.report or {}) | dict(report)
        model.status, model.reason, model.generation_id = "live", None, generation.id
        put_in_place(model, generation)
        schedule_retrain(session, model)
        make_version(session, job, draft, replaced, number, gone=digests)
        if replaced is not None:
            gone = drop_all_vectors(session, replaced.generation_id)
            erase(session, session.get_one(Version, draft.version_id), replaced.generation_id, gone)
        finish(session, job, results, draft.version_id, draft.method)
        queue_newcomers(session, job, model)
        place = job.model_name, job.generation_id
        since = _compared_until(session, generation, replaced)
        requests.ask_those_since(session, job.tenant_id, place, model.id, since)


def _require_unchanged(session: Session, job: Preparation, current: Leaving, drafted: Leaving) -> None:
    """Check that the model is what the draft was made for. Raises Replan."""
    before, after = drafted.replaced, current.replaced
    if before is None or after is None or (before.id, drafted.size) != (after.id, current.size):
        raise Replan("the model moved on while the switch was drafted")
    candidate = session.get_one(Generation, job.generation_id)
    if is_port(candidate):
        _require_people_held_since(session, candidate, after.generation_id)
    else:
        _require_held_people(session, job, after.generation_id)


def _compared_until(session: Session, generation: Generation, replaced: Version | None) -> int:
    """Return the time from which on requests are still to be compared with this generation's people.

    Those of before met them in its preparation, or in the replaced one. One of release 0.2 has no spellings: what was
    asked of it was compared exactly only, and all of it is compared now.
    """
    served = None if replaced is None else session.get_one(Generation, replaced.generation_id)
    return generation.created_at if served is None or requests.SPELLINGS in (served.manifest or {}) else 0


def _end_replaced(session: Session, model: Model, job: Preparation, replaced: Version) -> None:
    """End the served generation, and fence off an update that is still computed on it."""
    release(session, model_lease(model.id), retrain_lease(model.id))  # first: a heartbeat locks in this order
    old = session.get_one(Generation, replaced.generation_id)
    old.status, old.phase, old.ended_at = "ended", None, now(session)
    facts: dict[str, Any] = {"model_id": model.id, "generation": job.generation_id, "replaces": old.id}
    if is_port(session.get_one(Generation, job.generation_id)):
        facts["port"] = True
    record(session, job.tenant_id, "generation.switched", **facts)


def _first_results(
    session: Session, job: Preparation, current: Leaving, left_out: Mapping[str, int]
) -> dict[ClaimedTask, Result]:
    """Return the result of every waiting task with version 1, without those that can still be cancelled.

    Raises Replan where someone asked since the draft.
    """
    found = current.asked
    missing = found.going.difference(current.target.positions)
    if missing:
        raise Replan(still_there(found.named, missing))
    rows = session.execute(
        select(Task.id, Task.request_id).where(Task.model_id == job.model_id, Task.status.in_(("queued", "running")))
    )
    results: dict[ClaimedTask, Result] = {}
    unnamed: list[ClaimedTask] = []
    for task_id, request_id in rows:
        if request_id in found.later:
            continue
        positions = found.named.get(request_id, frozenset())
        kept_out = left_out.get(request_id, 0)
        task = ClaimedTask(task_id, request_id)
        if positions & found.protected:
            results[task] = Blocked(Reason.LEGAL_HOLD)
        elif request_id in found.partial:
            results[task] = Blocked(Reason.PARTIAL_SUBJECT)
        elif positions:
            results[task] = Completed(len(positions) + kept_out)
        elif kept_out:
            results[task] = Completed(kept_out, Reason.LEFT_OUT)
        else:
            unnamed.append(task)
    return results | why_empty(session, job, unnamed)


def _switch_results(
    session: Session, job: Preparation, current: Leaving, replaced: Version
) -> dict[ClaimedTask, Result]:
    """Return the result of each open task with the switch. Raises Replan."""
    named, target = current.asked.named, frozenset(current.target.positions)
    results: dict[ClaimedTask, Result] = {}
    unnamed: list[ClaimedTask] = []
    for task_id, request_id, status in _tasks(session, job, named):
        positions = named.get(request_id, frozenset())
        if status == "completed" and not positions <= target | current.asked.protected:
            raise Replan(still_there(named, positions - target))
        if status == "completed" and positions - target:
            what = "a person was forgotten while the candidate was trained, and is under a legal hold since"
            raise Replan(what, train_again=True)
        if status not in OPEN or request_id in current.asked.later:
            continue
        task = ClaimedTask(task_id, request_id)
        if positions & current.asked.protected:
            results[task] = Blocked(Reason.LEGAL_HOLD)
        elif positions <= target:
            samples = len(current.leaving.get(request_id, positions))
            if samples:
                results[task] = Completed(samples)
            else:
                unnamed.append(task)
        elif status != "blocked":
            results[task] = Postponed()
    return results | why_empty(session, replace(job, generation_id=replaced.generation_id), unnamed)


def _leaving(
    session: Session, job: Preparation, old_id: int, found: Outstanding, target: Target
) -> dict[str, frozenset[int]]:
    old = requests.positions(session, job.tenant_id, job.model_name, old_id)
    protected = held_positions(session, job.tenant_id, old_id)
    gone = frozenset(target.positions)
    return {
        request: frozenset(positions)
        for request, positions in old.items()
        if found.named.get(request, frozenset()) <= gone and protected.isdisjoint(positions)
    }


def _tasks(session: Session, job: Preparation, named: Mapping[str, frozenset[int]]) -> list[tuple[str, str, str]]:
    """Return (id, request, status) of the model's open tasks and of the tasks that name samples of the candidate.

    A task that only waits for consumers is carried out, and counts as completed.
    """
    status = case((Task.reason == Reason.AWAITING_CONSUMERS, "completed"), else_=Task.status).label("status")
    columns = select(Task.id, Task.request_id, status).where(Task.model_id == job.model_id)
    found = {row.id: row for row in session.execute(columns.where(Task.status.in_(OPEN)))}
    for batch in batches(named):
        found |= {row.id: row for row in session.execute(columns.where(Task.request_id.in_(batch)))}
    return [(row.id, row.request_id, row.status) for row in found.values()]


def _require_held_people(session: Session, job: Preparation, old_id: int) -> None:
    """Check that the candidate holds all people that a legal hold keeps in the served generation. Raises Replan."""
    protected = held_positions(session, job.tenant_id, old_id)
    gone = frozenset(session.scalars(select(Removal.position).where(Removal.generation_id == old_id)))
    for batch in batches(sorted(protected - gone)):
        kept = select(Membership.sample_digest).where(
            Membership.generation_id == old_id, Membership.position.in_(batch)
        )
        wanted = set(session.scalars(kept))
        there = select(Membership.sample_digest).where(
            Membership.generation_id == job.generation_id, Membership.sample_digest.in_(wanted)
        )
        if wanted - set(session.scalars(there)):
            what = "a legal hold was placed on a person that the candidate lacks"
            raise Replan(what, train_again=True, remedy=GIVE_BACK_THE_HELD)


def _require_people_held_since(session: Session, candidate: Generation, old_id: int) -> None:
    """Check that a port holds the served people on whom a legal hold was placed while it was trained. Raises Replan.

    Those of before were kept as far as the sources name them.
    """
    since = (candidate.manifest or {}).get(HOLDS_READ_AT, 0)
    placed = select(Hold.subject_digest, Hold.sample_digest).where(
        Hold.tenant_id == candidate.tenant_id, Hold.lifted_at.is_(None), Hold.created_at >= since
    )
    names = {name for row in session.execute(placed) for name in row if name is not None}
    gone = frozenset(session.scalars(select(Removal.position).where(Removal.generation_id == old_id)))
    people: set[str] = set()
    for batch in batches(sorted(names)):
        for column in (Membership.subject_digest, Membership.sample_digest):
            held = select(Membership.subject_digest, Membership.position)
            rows = session.execute(held.where(Membership.generation_id == old_id, column.in_(batch)))
            people |= {person for person, position in rows if position not in gone}
    for batch in batches(sorted(people)):
        there = select(Membership.subject_digest).where(
            Membership.generation_id == candidate.id, Membership.subject_digest.in_(batch)
        )
        if set(batch) - set(session.scalars(there)):
            what = "a legal hold was placed on a person that the candidate lacks"
            raise Replan(what, train_again=True, remedy=GIVE_BACK_THE_HELD)
