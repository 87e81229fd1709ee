"""About when an open part of a request will be carried out, by the time that others took.

It follows from what stays the same until something happens, so that a request's ETag stays the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session, aliased

from expunge_service.infra.db import batches, now
from expunge_service.infra.tables import Generation, Model, PhaseSeconds, Version
from expunge_service.infra.time import SECOND
from expunge_service.models.batch import policy_with_batch
from expunge_service.models.retrain_plan import SECONDS, budget_of, candidate_of, measured_seconds
from expunge_service.requests import ModelTask, Reason
from unlearning.accounting.policy import Clock, Queue, next_action

RECENT = 5
"""the last versions of a model; the median of those that are updates counts"""
_served = aliased(Version)


def expected(session: Session, tasks: Iterable[ModelTask]) -> dict[str, int]:
    """Return the moment for each open part, by the id of its task.

    A part is left out where no time is known, and once the moment has passed: then it waits for a worker.
    """
    waiting = [task for task in tasks if _waits(task)]
    if not waiting:
        return {}
    at = now(session)
    updates = _update_seconds(session, {task.model_id: task.generation_id for task in waiting})
    retrains = _retrained_at(session, {task.model_id for task in waiting if task.reason == Reason.AWAITING_RETRAIN})
    moments = {}
    for task in waiting:
        seconds = updates.get(task.model_id)
        moment = retrains.get(task.model_id) if task.reason == Reason.AWAITING_RETRAIN else None
        if task.reason != Reason.AWAITING_RETRAIN and seconds is not None:
            opens = task.due_at or 0 if task.reason == Reason.AWAITING_BATCH else 0
            moment = max(task.not_before, opens) + int(seconds * SECOND)
        if moment is not None and moment > at:
            moments[task.id] = moment
    return moments


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
    took = _update_seconds(session, {model.id: model.generation_id}).get(model.id)
    return (Reason.AWAITING_BATCH if opens > ready else None), opens + int((took or 0.0) * SECOND)


def _waits(task: ModelTask) -> bool:
    served = task.model_status in ("live", "exhausted")
    return served and task.status in ("queued", "running") and task.reason != Reason.AWAITING_CONSUMERS


_LAST_UPDATES = (
    select(Version.model_id, func.sum(PhaseSeconds.seconds))
    .join(Model, Model.id == Version.model_id)
    .join(_served, _served.id == Model.current_id)
    .join(PhaseSeconds, PhaseSeconds.version_id == Version.id)
    .where(Model.id.in_(bindparam("models", expanding=True)))
    .where(Version.number > _served.number - RECENT, Version.parent_id.is_not(None))
    .group_by(Version.model_id, Version.id)
)
_TRAINED = (select(Generation.model_id, SECONDS, Generation.report["expected_repeats", 0, "share"].as_float())).where(
    Generation.id.in_(bindparam("generations", expanding=True))
)


def _update_seconds(session: Session, served: Mapping[str, int | None]) -> dict[str, float]:
    """Return how long an update of each model takes: as its last ones did, or the share of a training that one repeats.

    A model of which neither is known is left out. ``served``: the generation of each model, by the model's id.
    """
    updates: dict[str, list[float]] = {}
    for some in batches(served):
        for model_id, seconds in session.execute(_LAST_UPDATES, {"models": some}):
            updates.setdefault(model_id, []).append(seconds)
    took = {model_id: statistics.median(seconds) for model_id, seconds in updates.items()}
    for generations in batches(generation for model_id, generation in served.items() if model_id not in took):
        for model_id, trained, share in session.execute(_TRAINED, {"generations": generations}):
            if share is not None and trained is not None:
                took[model_id] = share * trained
    return took


_CANDIDATES = (
    select(Generation.model_id, Generation.created_at, Generation.report["eta_seconds"].as_float())
    .where(Generation.model_id.in_(bindparam("models", expanding=True)), Generation.status == "candidate")
    .order_by(Generation.id)
)


def _retrained_at(session: Session, model_ids: Collection[str]) -> dict[str, int]:
    """Return when the retrain that is planned ends, if it takes as long as the last training; by model."""
    planned: dict[str, tuple[int, float | None]] = {}
    for some in batches(model_ids):
        for model_id, created_at, seconds in session.execute(_CANDIDATES, {"models": some}):
            planned[model_id] = (created_at, seconds)
    return {
        model_id: created_at + int(float(seconds) * SECOND)
        for model_id, (created_at, seconds) in planned.items()
        if seconds is not None
    }
