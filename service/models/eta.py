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
from expunge.service.models.batch import policy_with_batch
from expunge.service.models.retrain_plan import budget_of, candidate_of, measured_seconds
from expunge.service.requests import Reason
from unlearning.accounting.policy import Clock, Queue, next_action

RECENT = 5
"""the last updates of a model; their median counts"""


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


def foreseen(session: Session, model: Model, ready: int, due_at: int) -> tuple[Reason | None, int | None]:
    """Return why a new request would wait in a served model, and when it would be done there at the earliest.

    ``ready``: when its update may begin; ``due_at``: by when it is planned to be done. It is as ``next_action`` decides
    for the model with this request alone. None: not known.
    """
    generation, candidate = session.get_one(Generation, model.generation_id), candidate_of(session, model.id)
    published = session.scalar(select(Version.published_at).where(Version.id == model.current_id))
    queue = Queue(waiting=1, due_at=due_at, released_at=published, retraining=candidate is not None)
    clock = Clock(ready, int((measured_seconds(generation) or 0.0) * SECOND))
    action = next_action(policy_with_batch(model, generation), budget_of(generation), queue, clock)
    if action.kind == "hold":
        return Reason.BUDGET_EXHAUSTED, None
    if action.kind in ("retrain", "nothing"):
        planned, seconds = _retrained_at(session, model.id), measured_seconds(generation)
        begins = None if seconds is None else ready + int(seconds * SECOND)
        return Reason.AWAITING_RETRAIN, begins if planned is None else planned
    opens = max(ready, min(action.until or ready, model.due_at or action.until or ready))
    took = _update_seconds(session, model)
    return (Reason.AWAITING_BATCH if opens > ready else None), opens + int((took or 0.0) * SECOND)


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
