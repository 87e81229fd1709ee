"""How often a model is updated: the policy's batch, or what follows from the method and its measured training."""

from __future__ import annotations

from dataclasses import replace

from expunge.service.infra.tables import Generation, Model
from expunge.service.infra.time import DAY_SECONDS, SECOND, duration
from expunge.service.models.retrain_plan import measured_seconds, measured_work
from expunge.service.requests import Regulation, shorter_than
from unlearning.accounting.policy import REPAIR, Policy, batch_by_rule

YEAR_SECONDS = 365 * DAY_SECONDS


def policy_with_batch(model: Model, generation: Generation) -> Policy:
    """Return the model's policy, its batch decided."""
    policy = Policy.from_json(model.policy)
    if policy.batch is not None:
        return policy
    return replace(policy, batch=batch_by_rule(_repeats(generation), measured_work(generation)))


def done_at(generation: Generation, begins: int) -> int:
    """Return when an update is done that may begin at a moment, should it fail once; microseconds since 1970."""
    return begins + int(2 * (measured_seconds(generation) or 0.0) * SECOND)


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
