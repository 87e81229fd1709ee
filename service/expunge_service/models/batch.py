"""How often a model is updated: the policy's batch, or what follows from the method and its measured training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches
from expunge_service.infra.tables import Generation, Model
from expunge_service.infra.time import DAY_SECONDS, SECOND, duration
from expunge_service.models.retrain_plan import SECONDS, measured_seconds, measured_work
from expunge_service.requests import ModelTask, Reason, Regulation, shorter_than
from unlearning.accounting.policy import REPAIR, Policy, batch_by_rule

YEAR_SECONDS = 365 * DAY_SECONDS


def policy_with_batch(model: Model, generation: Generation) -> Policy:
    """Return the model's policy, its batch decided."""
    policy = Policy.from_json(model.policy)
    if policy.batch is not None:
        return policy
    return replace(policy, batch=batch_by_rule(_repeats(generation), measured_work(generation)))


_TRAINED = select(Generation.id, SECONDS).where(Generation.id.in_(bindparam("generations", expanding=True)))


def done_at(session: Session, tasks: Iterable[ModelTask]) -> dict[str, int]:
    """Return when the update is done that each task waits for, should it fail once, by the task's id.

    In microseconds since 1970. Tasks are left out that wait for no update with others, or for one without a moment.
    """
    waiting = [task for task in tasks if task.status == "queued" and task.reason == Reason.AWAITING_BATCH]
    took = {
        generation: seconds or 0.0
        for some in batches({task.generation_id for task in waiting})
        for generation, seconds in session.execute(_TRAINED, {"generations": some})
    }
    return {
        task.id: task.due_at + int(2 * took[task.generation_id] * SECOND)
        for task in waiting
        if task.due_at is not None and task.generation_id in took
    }


def how_often(model: Model, generation: Generation) -> str:
    """Describe how often the model is updated, what that costs in a year, and when a deletion is done."""
    batch, training = policy_with_batch(model, generation).batch, measured_seconds(generation)
    repeats = _repeats(generation)
    said = [f"A training takes at most {duration(training)}."] if repeats and training is not None else []
    if len(shorter_than((batch or 0) / DAY_SECONDS)) == len(Regulation):  # every deadline comes before the batch
        said.append(
            f"Deletions wait until {duration(REPAIR // SECOND)} and two trainings before the earliest deadline, "
            "and share that update."
        )
    elif batch:
        reserve = duration(batch + REPAIR // SECOND)
        what = "trainings a year, whole or in part" if repeats else "updates a year"
        said += [
            f"Deletions wait for the next update, at most one in {duration(batch)}.",
            f"That makes about {max(1, round(YEAR_SECONDS / batch)):,} {what}.",
            f"There are more where requests come or are decided with less than {reserve} and two trainings left.",
            f"A deletion is usually done within {duration(batch)} and two trainings.",
        ]
    else:
        said.append("Each deletion is carried out at once, with all who wait.")
    late = shorter_than((REPAIR // SECOND + 2 * (training or 0.0)) / DAY_SECONDS) if repeats else []
    if late:
        said.append(
            f"Two trainings and three days are longer than the deadline of {', '.join(late)}: deletions may be late. "
            "Take a method that repeats less, or a shorter training."
        )
    return " ".join(said)


def _repeats(generation: Generation) -> bool:
    """Return whether an update repeats training: preparation has said how much."""
    return bool((generation.report or {}).get("expected_repeats"))
