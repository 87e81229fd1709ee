"""About when an open part of a request will be carried out, by the time that others took.

It follows from what stays the same until something happens, so that a request's ETag stays the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge.service.infra.db import now
from expunge.service.infra.tables import Generation, Model, PhaseSeconds, Task, Version
from expunge.service.infra.time import SECOND
from expunge.service.models.retrain_plan import candidate_of, measured_seconds
from expunge.service.requests import Reason

RECENT = 5
"""the last updates of a model, whose median counts"""


def expected(session: Session, parts: Iterable[tuple[Task, Model]]) -> dict[str, int]:
    """Return the moment for each open part, by the id of its task.

    A part is left out where no time is known, and once the moment has passed: then it waits for a worker.
    """
    waiting = [(task, model) for task, model in parts if _waits(task, model)]
    if not waiting:
        return {}
    at = now(session)
    models = {model.id: model for _, model in waiting}
    updates = {key: _update_seconds(session, model) for key, model in models.items()}
    planned = {task.model_id for task, _ in waiting if task.reason == Reason.AWAITING_RETRAIN}
    retrains = {key: _retrained_at(session, key) for key in planned}
    found = {}
    for task, model in waiting:
        seconds = updates[model.id]
        moment = retrains.get(model.id) if task.reason == Reason.AWAITING_RETRAIN else None
        if task.reason != Reason.AWAITING_RETRAIN and seconds is not None:
            opens = model.due_at or 0 if task.reason == Reason.AWAITING_BATCH else 0
            moment = max(task.not_before, opens) + int(seconds * SECOND)
        if moment is not None and moment > at:
            found[task.id] = moment
    return found


def _waits(task: Task, model: Model) -> bool:
    served = model.status in ("live", "exhausted")
    return served and task.status in ("queued", "running") and task.reason != Reason.AWAITING_CONSUMERS


def _update_seconds(session: Session, model: Model) -> float | None:
    """Return how long an update takes: as its last ones did, or the share of a training that one repeats."""
    last = (
        select(Version.id)
        .where(Version.model_id == model.id, Version.parent_id.is_not(None))
        .order_by(Version.number.desc())
        .limit(RECENT)
    )
    whole = select(func.sum(PhaseSeconds.seconds)).group_by(PhaseSeconds.version_id)
    took = session.scalars(whole.where(PhaseSeconds.version_id.in_(session.scalars(last).all()))).all()
    if took:
        return statistics.median(took)
    generation = session.get_one(Generation, model.generation_id)
    trained = measured_seconds(generation)
    share = next((row["share"] for row in (generation.report or {}).get("expected_repeats", ())), None)
    return None if share is None or trained is None else share * trained


def _retrained_at(session: Session, model_id: str) -> int | None:
    """Return when the retrain that is planned ends, if it takes as long as the last training."""
    candidate = candidate_of(session, model_id)
    seconds = (candidate.report or {}).get("eta_seconds") if candidate else None
    return None if candidate is None or seconds is None else candidate.created_at + int(float(seconds) * SECOND)
