"""The plan to retrain a model: one candidate generation, however many requests wait for it.

While it is built, the served generation still publishes updates. Workers and the API plan it, workers build it. Every
retrain reads the recipe's present data. A dry run is a retrain that ends once it has counted what changed in them. A
port is the retrain of a model whose recipe was rewritten as one with rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import now
from expunge_service.infra.tables import Generation, Model, Task, Version, WorkUnit
from expunge_service.infra.time import SECOND
from expunge_service.models.generations import open_generation
from expunge_service.models.recipe_files import gets_rows
from expunge_service.requests import WITH_ROWS, Reason, RequestRefused
from unlearning.accounting.budget import Budget
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import RETRAIN, Fallback, Policy

NEW_DATA = "new_data"
"""why a retrain is planned on request or by the policy's schedule"""
PORT = "port"
"""why a retrain is planned whose recipe was rewritten as one with rows"""
PORTED = "ported"
"""in a manifest: the method that a port gave the model instead of its policy's; later generations have it too"""
HOLDS_READ_AT = "holds_read_at"
"""in a manifest: when an attempt at a port read the legal holds, in microseconds since 1970"""
NOT_PORTED = frozenset({Guarantee.ESTIMATED})
"""guarantees that a port leaves behind, and trains exactly: most recipes with rows cannot have them"""


@dataclass(frozen=True)
class PlannedRetrain:
    """A retrain that waits or runs; moments in microseconds since 1970."""

    reason: str
    dry_run: bool
    generation: int
    waiting: int
    """requests that it will serve, as far as they have come"""
    attempt: int
    phase: str | None
    progress: float
    planned_at: int
    eta: int | None
    """None: no training of this model was ever timed"""


def retrain_lease(model_id: str) -> str:
    """Return the name of the lease under which a model's candidate generation is built."""
    return f"retrain:{model_id}"


def candidate_of(session: Session, model_id: str) -> Generation | None:
    """Return the model's candidate generation, if one is planned or being built."""
    return session.scalars(PLANNED.order_by(Generation.id.desc()).limit(1), {"model": model_id}).one_or_none()


def plan_retrain(session: Session, model: Model, note: str | None = None) -> Generation | None:
    """Return the model's candidate: the planned one, or a new one where a retrain is due; None where none is due.

    The caller has locked the model's row. ``note`` is sealed and says why the policy's fallback was taken. A dry run
    that waits when a retrain is due becomes that retrain.
    """
    planned = candidate_of(session, model.id)
    replaceable = planned is None or (is_dry_run(planned) and not is_port(planned))
    why = why_due(session, model) if replaceable else None
    if why is None:
        return planned
    facts: dict[str, Any] = {"reason": why}
    if why == NEW_DATA:
        facts["scheduled"], model.retrain_at = True, None
    return _planned(session, model, planned, facts, note)


def plan_new_data(session: Session, model: Model, *, dry_run: bool) -> Generation:
    """Return the planned retrain on the recipe's present data: the one that is planned already, or a new one.

    The caller has locked the model's row. With ``dry_run`` it ends once the changes of the data are counted.

    Raises:
        RequestRefused: the model has no version to replace, or a dry run is asked for while a retrain is planned.
    """
    if model.status not in ("live", "exhausted"):
        what = f"The model is {model.status}: only a model that is served can be trained again."
        raise RequestRefused(409, "not_served", what)
    return _asked_for(session, model, NEW_DATA, dry_run=dry_run)


def plan_port(session: Session, model: Model, recipes: Path, *, dry_run: bool) -> Generation:
    """Return the port of a model whose recipe was rewritten as one with rows: the planned one, or a new one.

    Its generation holds who is in the recipe's sources, without those who asked to leave. The caller has locked the
    model's row. ``recipes`` is the tenant's folder. With ``dry_run`` it ends once the people are counted.

    Raises:
        RequestRefused: the model has no version to replace, was registered with rows, its recipe has none, or another
            retrain is planned.
    """
    if model.status not in ("live", "exhausted"):
        what = f"The model is {model.status}: only a model that is served can be ported."
        raise RequestRefused(409, "not_served", what)
    if is_with_rows(session.get_one(Generation, model.generation_id).manifest):
        what = "The model's recipe had rows already when it was trained. `expunge models retrain` trains it again."
        raise RequestRefused(409, "already_ported", what)
    if not gets_rows(recipes, model.recipe):
        what = (
            "The model's recipe has no rows, or its file cannot be read. Rewrite it as docs/rows.md says, under the "
            "same name, then port the model."
        )
        raise RequestRefused(409, "recipe_without_rows", what)
    return _asked_for(session, model, PORT, dry_run=dry_run)


def _asked_for(session: Session, model: Model, reason: str, *, dry_run: bool) -> Generation:
    """Return the retrain for this reason: the planned one, or a new one. Raises RequestRefused for a planned other."""
    planned = candidate_of(session, model.id)
    if planned is not None and is_port(planned) != (reason == PORT):
        what = "Another retrain of this model is planned or runs. Look at its preparation, and ask again when it ended."
        raise RequestRefused(409, "retrain_planned", what)
    if planned is not None and not is_dry_run(planned):
        if dry_run:
            what = "A retrain of this model is planned or runs: it counts the changes itself. Look at its preparation."
            raise RequestRefused(409, "retrain_planned", what)
        return planned
    if planned is not None and dry_run:
        return planned
    return _planned(session, model, planned, {"reason": reason} | ({"dry_run": True} if dry_run else {}))


def is_dry_run(candidate: Generation) -> bool:
    """Return whether the candidate only counts what changed in the recipe's data."""
    return bool((candidate.report or {}).get("dry_run"))


def is_port(candidate: Generation) -> bool:
    """Return whether the candidate is trained by the rows of a recipe that was rewritten."""
    return (candidate.report or {}).get("reason") == PORT


def is_with_rows(manifest: Mapping[str, Any] | None) -> bool:
    """Return whether the generation with this manifest was trained by a recipe with rows, as all since 0.3."""
    return bool((manifest or {}).get(WITH_ROWS))


def schedule_retrain(session: Session, model: Model) -> None:
    """Write down when the policy's schedule plans the next retrain, counted from now."""
    every = Policy.from_json(model.policy).retrain_every
    model.retrain_at = now(session) + every * SECOND if every else None


def _planned(
    session: Session, model: Model, dry_run: Generation | None, facts: dict[str, Any], note: str | None = None
) -> Generation:
    """Open a candidate, or make the model's waiting dry run one."""
    served = session.get_one(Generation, model.generation_id)
    report = facts | {"eta_seconds": measured_seconds(served)}
    ports = facts["reason"] == PORT
    candidate = dry_run or open_generation(session, _candidate(session, model, served, ports=ports))
    candidate.report, candidate.manifest = report, (candidate.manifest or {}) | {"note": note}
    record(session, model.tenant_id, "retrain.planned", model_id=model.id, generation=candidate.id, **report)
    return candidate


def _candidate(session: Session, model: Model, served: Generation, *, ports: bool) -> Generation:
    """Return a new candidate by the model's policy, with the method that ``auto`` chose for the served generation, or
    that its port gave it.
    """
    policy = Policy.from_json(model.policy)
    frozen = served.manifest or {}
    if ports:
        follows = policy.guarantee not in NOT_PORTED
        instead = {} if follows else {PORTED: {"method": RETRAIN, "instead": served.method}}
    else:
        instead = {name: frozen[name] for name in ("chosen", PORTED) if name in frozen}
    method = next((note["method"] for note in instead.values()), policy.method)
    return Generation(
        tenant_id=model.tenant_id,
        model_id=model.id,
        status="candidate",
        method=method,
        guarantee="none",
        noise_std=policy.noise_std,
        max_distance=policy.max_distance,
        epsilon=policy.epsilon,
        delta=policy.delta,
        manifest=instead,
        created_at=now(session),
    )


def why_due(session: Session, model: Model) -> str | None:
    """Return why a retrain is to be planned now: ``fallback``, ``budget_exhausted``, ``new_data``; None: none is.

    After a refused retrain only a waiting request makes the next one due for an exhausted budget: without one it would
    be refused again.
    """
    if session.scalar(FALLBACK.limit(1), {"model": model.id}):
        return "fallback"
    return is_due_otherwise(session, model)


def is_due_otherwise(session: Session, model: Model) -> str | None:
    """Return ``why_due`` of a model without requests that wait for a retrain."""
    if _exhaustion_is_due(session, model):
        return Reason.BUDGET_EXHAUSTED
    scheduled = model.retrain_at is not None and model.retrain_at <= now(session)
    return NEW_DATA if scheduled else None


def _exhaustion_is_due(session: Session, model: Model) -> bool:
    if model.status != "exhausted" or Policy.from_json(model.policy).fallback is not Fallback.RETRAIN:
        return False
    published_at = session.scalar(select(Version.published_at).where(Version.id == model.current_id))
    refused = session.scalar(
        select(Generation.id).where(
            Generation.model_id == model.id, Generation.status == "refused", Generation.created_at >= published_at
        )
    )
    return refused is None or bool(session.scalar(select(Task.id).where(*_open_tasks(model.id)).limit(1)))


def plan_of(session: Session, model: Model) -> PlannedRetrain | None:
    """Return the model's plan; None where no retrain is planned."""
    candidate = candidate_of(session, model.id)
    if candidate is None:
        return None
    report = candidate.report or {}
    seconds = report.get("eta_seconds")
    left = None if seconds is None else int(float(seconds) * (1.0 - candidate.progress) * SECOND)
    return PlannedRetrain(
        reason=str(report.get("reason")),
        dry_run=is_dry_run(candidate),
        generation=candidate.id,
        waiting=session.scalar(select(func.count(Task.id)).where(*waiting_for_retrain(model))) or 0,
        attempt=candidate.attempts,
        phase=candidate.phase,
        progress=candidate.progress,
        planned_at=candidate.created_at,
        eta=None if left is None else now(session) + left,
    )


def work_units_of(session: Session, generation_id: int) -> tuple[int, int]:
    """Return how many work units of a generation are done, and how many there are. 0 of 0: it is built in one piece."""
    counts = select(func.count(WorkUnit.done_at), func.count()).where(WorkUnit.generation_id == generation_id)
    done, count = session.execute(counts).one()
    return done, count


def waiting_for_retrain(model: Model) -> tuple[ColumnElement[bool], ...]:
    """Return the tasks that wait for the retrain: all of an exhausted model's, else those that no update can serve."""
    waits = _open_tasks(model.id)
    return waits if model.status == "exhausted" else (*waits, Task.reason == Reason.AWAITING_RETRAIN)


def _open_tasks(model_id: str | ColumnElement[str]) -> tuple[ColumnElement[bool], ...]:
    waits = func.coalesce(Task.reason, "") != Reason.AWAITING_CONSUMERS
    return Task.model_id == model_id, Task.status.in_(("queued", "running")), waits


PLANNED = select(Generation).where(Generation.model_id == bindparam("model"), Generation.status == "candidate")
"""the candidate generations of a model"""
FALLBACK = select(Task.id).where(*_open_tasks(bindparam("model")), Task.reason == Reason.AWAITING_RETRAIN)
"""the tasks that no update of the model can serve"""


def budget_of(generation: Generation) -> Budget:
    """Return the generation's budget: spent, limit and the cost of an update."""
    return Budget(spent=generation.spent, limit=generation.budget, budget_cost=generation.budget_cost)


SECONDS = Generation.report["seconds"].as_float()
"""what ``measured_seconds`` says, without the rest of the report, which may be long"""


def measured_seconds(generation: Generation) -> float | None:
    """Return how long the generation's own training and preparation took; None where that was not timed."""
    seconds = (generation.report or {}).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def measured_work(generation: Generation) -> float | None:
    """Return the seconds of work of one whole training, as the registration or the last update measured them.

    What a training costs does not depend on what else the machine did meanwhile. Where no work was measured yet, in a
    generation of an earlier release, it is what ``measured_seconds`` says.
    """
    seconds = (generation.report or {}).get("work_seconds")
    return float(seconds) if isinstance(seconds, int | float) else measured_seconds(generation)
