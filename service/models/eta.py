"""About when an open part of a request will be carried out, by the time that others took.

It follows from what stays the same until something happens, so that a request's ETag stays the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session, aliased

from expunge.service.infra.db import batches, now
from expunge.service.infra.tables import Generation, Model, PhaseSeconds, Task, Version
from expunge.service.infra.time import SECOND
from expunge.service.models.batch import policy_with_batch
from expunge.service.models.retrain_plan import budget_of, candidate_of, measured_seconds
from expunge.service.requests import Reason
from unlearning.accounting.policy import Clock, Queue, next_action

RECENT = 5
"""the last versions of a model; the median of those that are updates counts"""
_served = aliased(Version)
_LAST_UPDATES = (
    select(Version.model_id, func.sum(PhaseSeconds.seconds))
    .join(Model, Model.id == Version.model_id)
    .join(_served, _served.id == Model.current_id)
    .join(PhaseSeconds, PhaseSeconds.version_id == Version.id)
    .where(Model.id.in_(bindparam("models", expanding=True)))
    .where(Version.number > _served.number - RECENT, Version.parent_id.is_not(None))
    .group_by(Version.model_id, Version.id)
)
_SERVED = (
    select(Generation)
    .join(Model, Model.generation_id == Generation.id)
    .where(Model.id.in_(bindparam("models", expanding=True)))
)
_CANDIDATES = (
    select(Generation)
    .where(Generation.model_id.in_(bindparam("models", expanding=True)), Generation.status == "candidate")
    .order_by(Generation.id)
)


def expected(session: Session, parts: Iterable[tuple[Task, Model]]) -> dict[str, int]:
    """Return the moment for each open part, by the id of its task.

    A part is left out where no time is known, and once the moment has passed: then it waits for a worker.
    """
    waiting = [(task, model) for task, model in parts if _waits(task, model)]
    if not waiting:
        return {}
    at = now(session)
    updates = _update_seconds(session, {model.id for _, model in waiting})
    retrains = _retrained_at(session, {model.id for task, model in waiting if task.reason == Reason.AWAITING_RETRAIN})
    found = {}
    for task, model in waiting:
        seconds = updates.get(model.id)
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
        planned, seconds = _retrained_at(session, [model.id]).get(model.id), measured_seconds(generation)
        begins = None if seconds is None else ready + int(seconds * SECOND)
        return Reason.AWAITING_RETRAIN, begins if planned is None else planned
    opens = max(ready, min(action.until or ready, model.due_at or action.until or ready))
    took = _update_seconds(session, [model.id]).get(model.id)
    return (Reason.AWAITING_BATCH if opens > ready else None), opens + int((took or 0.0) * SECOND)


def _waits(task: Task, model: Model) -> bool:
    served = model.status in ("live", "exhausted")
    return served and task.status in ("queued", "running") and task.reason != Reason.AWAITING_CONSUMERS


def _update_seconds(session: Session, model_ids: Collection[str]) -> dict[str, float]:
    """Return how long an update of each model takes: as its last ones did, or the share of a training that one repeats.

    A model of which neither is known is left out.
    """
    updates: dict[str, list[float]] = {}
    for some in batches(model_ids):
        for model_id, seconds in session.execute(_LAST_UPDATES, {"models": some}):
            updates.setdefault(model_id, []).append(seconds)
    took = {model_id: statistics.median(seconds) for model_id, seconds in updates.items()}
    for some in batches(set(model_ids) - took.keys()):
        for generation in session.scalars(_SERVED, {"models": some}):
            trained = measured_seconds(generation)
            share = next((row["share"] for row in (generation.report or {}).get("expected_repeats", ())), None)
            if share is not None and trained is not None:
                took[generation.model_id] = share * trained
    return took


def _retrained_at(session: Session, model_ids: Collection[str]) -> dict[str, int]:
    """Return when the retrain that is planned ends, if it takes as long as the last training; by model."""
    planned: dict[str, Generation] = {}
    for some in batches(model_ids):
        planned |= {candidate.model_id: candidate for candidate in session.scalars(_CANDIDATES, {"models": some})}
    expected_seconds = {model_id: (each.report or {}).get("eta_seconds") for model_id, each in planned.items()}
    return {
        model_id: planned[model_id].created_at + int(float(seconds) * SECOND)
        for model_id, seconds in expected_seconds.items()
        if seconds is not None
    }
