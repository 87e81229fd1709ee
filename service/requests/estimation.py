"""The cost of a request before it is made. Nothing is changed, and neither weights nor data are read."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge.service.infra.db import batches
from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.tables import Generation, Membership, Model, Removal
from expunge.service.requests.intake import Forgetter, Named, Order, forgetters, require_known
from unlearning.accounting.budget import updates_left


@dataclass(frozen=True)
class Cost:
    """One model's part in the cost. ``budget_cost`` is in 1e-12 mu^2; one update may carry many requests for it."""

    model: str
    samples: int
    method: str
    guarantee: str
    budget_cost: int
    updates_left: int | None
    """after this request; None: nothing limits them"""
    retrain_due: bool
    """the cost does not fit into the budget, or is the last that does"""
    repeats: float | None
    """the share of a training that one request repeats on average, 0 to 1; None: its updates repeat none"""
    seconds: float | None
    """that this takes, by the time of the training; None where ``repeats`` is"""


def estimate(session: Session, pepper: Pepper, tenant_id: str, order: Order) -> list[Cost]:
    """Return the cost in every live model that was trained on the subject. Raises RequestRefused."""
    costs = []
    named = Named.of(pepper, tenant_id, order)
    names = require_known(session, tenant_id, [order])
    for model in forgetters(session, tenant_id, *(() if names is None else (Model.name.in_(names),))):
        if model.generation_id is None or model.status == "preparing":
            continue
        samples = _count(session, model.generation_id, named)
        if samples:
            costs.append(_cost(model, session.get_one(Generation, model.generation_id), samples))
    return costs


def _cost(model: Forgetter, generation: Generation, samples: int) -> Cost:
    left = updates_left(generation.spent, generation.budget, generation.budget_cost)
    report = generation.report or {}
    whole = report.get("seconds")
    share = next((row["share"] for row in report.get("expected_repeats", ())), None)
    return Cost(
        model=model.name,
        samples=samples,
        method=generation.method,
        guarantee=generation.guarantee,
        budget_cost=generation.budget_cost,
        updates_left=None if left is None else max(0, left - 1),
        retrain_due=left is not None and left <= 1,
        repeats=share,
        seconds=None if share is None or whole is None else share * whole,
    )


def _count(session: Session, generation_id: int, named: Named) -> int:
    """Count the samples that would be forgotten: those that are named and not forgotten yet."""
    gone = select(Removal.position).where(Removal.generation_id == generation_id)
    count = select(func.count(Membership.position.distinct())).where(
        Membership.generation_id == generation_id, Membership.position.not_in(gone)
    )
    if named.subjects:
        return session.scalar(count.where(Membership.subject_digest.in_(named.subjects))) or 0
    return sum(session.scalar(count.where(Membership.sample_digest.in_(part))) or 0 for part in batches(named.samples))
