"""The switch: the one transaction in which a candidate generation becomes the model's.

It is made under the model's row lock and the candidate's lease. Whoever was forgotten in the old generation since the
training began is not in the version that it publishes; waiting tasks end with it, or wait on for the new generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import and_, case, delete, insert, or_, select
from sqlalchemy.orm import Session

from service.audit import log as ledger
from service.infra.db import now
from service.infra.fault_injection import crash_point
from service.infra.tables import Erasure, Forgotten, Generation, Membership, Model, Recollection, Task, Version
from service.requests import suppression as suppressions
from service.requests.reasons import Reason
from workers.guarantee.certify import Size
from workers.runtime.jobs import Claimed, Retraining
from workers.runtime.lease import Stale, fence, give_back, give_back_beside
from workers.storage.key_store import BATCH, batches
from workers.storage.storage import Storage
from workers.update.publish import (
    Departure,
    Draft,
    Registered,
    SuppressionAppeared,
    Unusable,
    make_version,
    require_no_hold,
    sample_digests,
    still_there,
)
from workers.update.select import Asked, Target, asked, held_positions, target_of, why_empty
from workers.update.task_results import Outcome, Published, finish, next_due, note_exhaustion, queue_tasks, wrap_up

OPEN = ("queued", "running", "blocked")


class HeldPersonMissing(Unusable):
    """A legal hold keeps somebody whom the candidate was trained without: train it again."""


class ForgottenPersonBack(Unusable):
    """A legal hold would keep somebody in the candidate whom the model has forgotten: train it again without them."""


@dataclass(frozen=True)
class Present:
    """What the candidate is to replace."""

    generation_id: int
    current_id: str
    accuracy: float | None


@dataclass(frozen=True)
class Shift(Departure):
    """What a switch does: whom the candidate still forgets, and how much goes with its first version."""

    present: Present
    asked: Asked
    leaving: Mapping[str, frozenset[int]]
    """by request: the old generation's positions that the candidate's first version lacks"""


def shift(session: Session, job: Retraining) -> Shift:
    """What a switch would do as the database stands: everybody who asked by now is gone with it."""
    model = session.get_one(Model, job.lease.model_id)
    found = asked(session, job, _cancellable(session, model.id))
    return _shift(session, job, model, found, target_of(session, job.generation_id, found.going))


def _shift(session: Session, job: Retraining, model: Model, found: Asked, target: Target) -> Shift:
    if model.current_id is None or model.generation_id is None:
        raise Stale(f"model {model.id} has no head to replace")
    head = session.get_one(Version, model.current_id)
    present = Present(model.generation_id, head.id, head.holdout_accuracy)
    leaving = _leaving(session, job, present.generation_id, found, target)
    going = frozenset().union(*leaving.values())
    people = target_of(session, present.generation_id, going).people
    return Shift(target, Size(len(going), people), present, found, leaving)


def switch(storage: Storage, job: Retraining, draft: Draft, registered: Registered, drafted: Shift) -> None:
    """Make the candidate the model's generation.

    An update that is being computed on the old generation meanwhile is stale: its tasks end here.
    Raises Stale, HoldAppeared, TombstoneAppeared, HeldPersonMissing, ForgottenPersonBack, Overspent; then nothing was
    written.
    """
    crash_point("worker-before-publish")
    with storage.database.write(crash="publish-inside-commit") as session:
        model = fence(session, job.lease)
        require_no_hold(session, job, draft.target)
        found = asked(session, job, _cancellable(session, model.id))
        current = _shift(session, job, model, found, draft.target)
        if (current.present, current.size) != (drafted.present, drafted.size):
            raise SuppressionAppeared("the model moved on while the switch was drafted")
        old_id = current.present.generation_id
        _require_held_people(session, job, old_id)
        outcomes, newcomers = _outcomes(session, job, current)
        digests = sample_digests(session, old_id, frozenset().union(*current.leaving.values()))
        _exchange(session, model, job, registered)
        make_version(session, job, draft, session.get_one(Version, current.present.current_id), digests)
        crash_point("switch-after-version")
        _erase_all(session, job, old_id, draft.version_id)
        finish(session, job, Published(draft.version_id, draft.method), outcomes)
        queue_tasks(session, model, newcomers)
        crash_point("switch-after-tasks")
        note_exhaustion(session, model)
        wrap_up(session, model, next_due(session, model))
        entry = storage.journal.write(session, job, draft.budget_cost, draft.version_id)
    crash_point("worker-after-commit")
    storage.journal.confirm(entry)


def _exchange(session: Session, model: Model, job: Retraining, registered: Registered) -> None:
    """The old generation ends, the candidate lives, and an update that still computes on the old one is fenced off."""
    at = now(session)
    old, new = session.get_one(Generation, model.generation_id), session.get_one(Generation, job.generation_id)
    old.status, old.phase, old.ended_at = "ended", None, at
    new.status, new.progress, new.phase = "live", 1.0, None
    new.report = (new.report or {}) | dict(registered.report)
    model.status, model.reason, model.generation_id = "live", None, new.id
    model.lease_token += 1
    give_back(model)
    give_back_beside(session, model.id)
    ledger.record(session, job.tenant_id, "generation.switched", model_id=model.id, generation=new.id, replaces=old.id)


def _erase_all(session: Session, job: Retraining, old_id: int, version_id: str) -> None:
    """Every vector of the old generation goes now; its keys are destroyed once this transaction is committed."""
    at = now(session)
    gone = delete(Recollection).where(Recollection.generation_id == old_id).returning(Recollection.key_id)
    rows = [
        {
            "tenant_id": job.tenant_id,
            "generation_id": old_id,
            "version_id": version_id,
            "key_id": key_id,
            "created_at": at,
        }
        for key_id in session.scalars(gone.execution_options(synchronize_session=False))
    ]
    for batch in batches(rows, BATCH):
        session.execute(insert(Erasure), batch)


def _outcomes(session: Session, job: Retraining, current: Shift) -> tuple[dict[Claimed, Outcome], list[str]]:
    """What becomes of each open task, and which requests need a task. Raises TombstoneAppeared, ForgottenPersonBack."""
    named, target = current.asked.named, frozenset(current.target.positions)
    newcomers = set(named)
    outcomes: dict[Claimed, Outcome] = {}
    for task_id, request_id, status in _tasks(session, job, named):
        newcomers.discard(request_id)
        positions = named.get(request_id, frozenset())
        if status == "completed" and not positions <= target | current.asked.protected:
            raise SuppressionAppeared(still_there(named, positions - target))
        if status == "completed" and positions - target:
            raise ForgottenPersonBack("somebody was forgotten while the candidate was trained, and held since")
        if status not in OPEN:
            continue
        task = Claimed(task_id, request_id)
        if positions & current.asked.protected:
            outcomes[task] = Outcome("blocked", None, Reason.LEGAL_HOLD)
        elif positions <= target:
            samples = len(current.leaving.get(request_id, positions))
            why = (
                None if samples else why_empty(session, replace(job, generation_id=current.present.generation_id), task)
            )
            outcomes[task] = Outcome("completed", samples, why)
        elif status != "blocked":
            outcomes[task] = Outcome("queued")
    return outcomes, sorted(newcomers)


def _leaving(session: Session, job: Retraining, old_id: int, found: Asked, target: Target) -> dict[str, frozenset[int]]:
    old = suppressions.positions(session, job.tenant_id, job.model_name, old_id)
    protected = held_positions(session, job.tenant_id, old_id)
    gone = frozenset(target.positions)
    return {
        request: frozenset(positions)
        for request, positions in old.items()
        if found.named.get(request, frozenset()) <= gone and protected.isdisjoint(positions)
    }


def _tasks(session: Session, job: Retraining, named: Mapping[str, frozenset[int]]) -> list[tuple[str, str, str]]:
    """(id, request, status) of the model's open tasks, and of all that the candidate's samples are named by.

    What only waits for consumers is carried out: it counts as completed.
    """
    status = case((Task.reason == Reason.AWAITING_CONSUMERS, "completed"), else_=Task.status).label("status")
    columns = select(Task.id, Task.request_id, status).where(Task.model_id == job.lease.model_id)
    found = {row.id: row for row in session.execute(columns.where(Task.status.in_(OPEN)))}
    for batch in batches(named, BATCH):
        found |= {row.id: row for row in session.execute(columns.where(Task.request_id.in_(batch)))}
    return [(row.id, row.request_id, row.status) for row in found.values()]


def _cancellable(session: Session, model_id: str) -> frozenset[str]:
    """Requests whose cancel window is open, and large ones that nobody has approved yet."""
    inside = and_(Task.status == "queued", Task.not_before > now(session))
    large = and_(Task.status == "blocked", Task.reason == Reason.LARGE)
    query = select(Task.request_id).where(Task.model_id == model_id, or_(inside, large))
    return frozenset(session.scalars(query))


def _require_held_people(session: Session, job: Retraining, old_id: int) -> None:
    """Whoever a legal hold keeps in the old generation must be in the candidate."""
    protected = held_positions(session, job.tenant_id, old_id)
    gone = frozenset(session.scalars(select(Forgotten.position).where(Forgotten.generation_id == old_id)))
    for batch in batches(sorted(protected - gone), BATCH):
        kept = select(Membership.sample_digest).where(
            Membership.generation_id == old_id, Membership.position.in_(batch)
        )
        wanted = set(session.scalars(kept))
        there = select(Membership.sample_digest).where(
            Membership.generation_id == job.generation_id, Membership.sample_digest.in_(wanted)
        )
        if wanted - set(session.scalars(there)):
            raise HeldPersonMissing("a legal hold was placed on somebody whom the candidate lacks")
