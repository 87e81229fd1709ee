"""The switch: a retrained candidate becomes the lineage of the head, and the old lineage ends.

Under the model's lock, everybody who asked since the candidate's start must be forgotten in it first. Every waiting
task ends with the switch, whatever it waited for; only legal holds stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, insert, literal, select
from sqlalchemy.orm import Session

from service import tombstones
from service.crash import crash_point
from service.db import Database, now
from service.ledger import record
from service.records import Erasure, Lineage, Model, Recollection, Task, Version
from workers.certify import Size
from workers.jobs import Claimed, Retraining
from workers.lease import fence, give_back, give_back_beside
from workers.outcomes import Outcome, finish, next_due, note_exhaustion, wrap_up
from workers.plan import held_positions, target_of
from workers.publish import (
    Draft,
    Registered,
    TombstoneAppeared,
    make_version,
    require_all_forgotten,
    require_no_hold,
    sample_digests,
)


def leaving(session: Session, job: Retraining) -> frozenset[int]:
    """The positions of the head's lineage that leave the served model with the switch."""
    model = session.get_one(Model, job.lease.model_id)
    named = tombstones.positions(session, job.tenant_id, job.model_name, model.lineage_id or 0)
    return frozenset().union(*named.values()) - held_positions(session, job.tenant_id, model.lineage_id or 0)


def size_of(session: Session, job: Retraining) -> Size:
    """How many samples and people leave with the switch, as far as is known now."""
    model = session.get_one(Model, job.lease.model_id)
    target = target_of(session, model.lineage_id or 0, leaving(session, job))
    return Size(len(target.positions), target.people)


def publish_switch(database: Database, job: Retraining, draft: Draft, registered: Registered) -> None:
    """Make the candidate the lineage of the head.

    A release that is being computed on the old lineage meanwhile is stale: its tasks end here.
    Raises Stale, HoldAppeared, TombstoneAppeared, Overspent; then nothing was written.
    """
    crash_point("worker-before-publish")
    with database.write(crash="publish-inside-commit") as session:
        model = fence(session, job.lease)
        require_no_hold(session, job, draft.target)
        named = tombstones.positions(session, job.tenant_id, job.model_name, job.lineage_id)
        require_all_forgotten(session, job, draft, named)
        old = session.get_one(Lineage, model.lineage_id)
        gone = leaving(session, job)
        if len(gone) != draft.size.samples:
            raise TombstoneAppeared("more people leave with the switch than the draft says")
        outcomes = _outcomes(session, job, old.id)
        digests = sample_digests(session, old.id, gone)
        _turn(session, job, model, old, registered)
        make_version(session, job, draft, session.get_one(Version, model.head_id), digests)
        _erase_all(session, old, draft.version_id)
        finish(session, job, draft.version_id, outcomes)
        note_exhaustion(session, model)
        wrap_up(session, model, next_due(session, model))
    crash_point("worker-after-commit")


def _turn(session: Session, job: Retraining, model: Model, old: Lineage, registered: Registered) -> None:
    fresh = session.get_one(Lineage, job.lineage_id)
    fresh.status, fresh.progress, fresh.phase = "live", 1.0, None
    fresh.report = (fresh.report or {}) | dict(registered.report)
    old.status, old.phase, old.ended_at = "ended", None, now(session)
    model.status, model.lineage_id, model.reason = "live", fresh.id, None
    model.lease_token += 1
    give_back(model)
    give_back_beside(session, model.id)
    record(session, job.tenant_id, "lineage.switched", model_id=model.id, ended=old.id, lineage=fresh.id)
    session.flush()


def _outcomes(session: Session, job: Retraining, old_id: int) -> Mapping[Claimed, Outcome]:
    """Every open task ends; one under a legal hold waits on."""
    named = tombstones.positions(session, job.tenant_id, job.model_name, old_id)
    protected = held_positions(session, job.tenant_id, old_id)
    rows = session.execute(
        select(Task.id, Task.request_id).where(
            Task.model_id == job.lease.model_id,
            Task.status.in_(("queued", "running", "held")),
            func.coalesce(Task.reason, "") != "legal_hold",
        )
    )
    outcomes: dict[Claimed, Outcome] = {}
    for task_id, request_id in rows:
        positions = named.get(request_id, set())
        held = bool(positions & protected)
        done = Outcome("completed", len(positions), None if positions else "already_forgotten")
        outcomes[Claimed(task_id, request_id)] = Outcome("held", None, "legal_hold") if held else done
    return outcomes


def _erase_all(session: Session, old: Lineage, version_id: str) -> None:
    """Every key of the old lineage goes: its vectors are of no use any more."""
    rows = select(
        literal(old.tenant_id),
        literal(old.id),
        literal(version_id),
        Recollection.key_id,
        literal(now(session)),
    ).where(Recollection.lineage_id == old.id)
    columns = ("tenant_id", "lineage_id", "version_id", "key_id", "created_at")
    session.execute(insert(Erasure).from_select(columns, rows))
