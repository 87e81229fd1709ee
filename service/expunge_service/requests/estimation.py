"""A request before it is made: what it would cost, and what it names. No data change; no weights are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches
from expunge_service.infra.tables import Generation, Membership, Model, Removal
from expunge_service.requests.intake import NewRequest
from unlearning.accounting.budget import updates_left


@dataclass(frozen=True)
class Cost:
    """One model's part in the cost. ``budget_cost`` is in 1e-12 mu^2; one update may carry many requests for it.

    ``positions``: the samples that would be forgotten, those that are named and not forgotten yet.
    """

    model: str
    positions: frozenset[int]
    method: str
    guarantee: str
    budget_cost: int
    updates_left: int | None
    """after this request; None: no limit applies"""
    retrain_due: bool
    """the cost does not fit into the budget, or is the last that does"""
    repeats: float | None
    """the share of a training that one request repeats on average, 0 to 1; None: its updates repeat none"""
    seconds: float | None
    """that this takes, by the time of the training; None where ``repeats`` is"""

    @property
    def samples(self) -> int:
        return len(self.positions)


def estimate(session: Session, new: NewRequest) -> list[tuple[Model, Cost]]:
    """Return the cost in each live model that was trained on what the request names."""
    found = []
    for model in _places(session, new):
        if model.generation_id is None or model.status == "preparing":
            continue
        positions = _positions(session, model.generation_id, new)
        if positions:
            found.append((model, _cost(model, session.get_one(Generation, model.generation_id), positions)))
    return found


def _places(session: Session, new: NewRequest) -> Iterable[Model]:
    return session.scalars(select(Model).where(Model.id.in_(key for key, _ in new.found.places)).order_by(Model.name))


def _cost(model: Model, generation: Generation, positions: frozenset[int]) -> Cost:
    left = updates_left(generation.spent, generation.budget, generation.budget_cost)
    report = generation.report or {}
    whole = report.get("seconds")
    share = next((row["share"] for row in report.get("expected_repeats", ())), None)
    return Cost(
        model=model.name,
        positions=positions,
        method=generation.method,
        guarantee=generation.guarantee,
        budget_cost=generation.budget_cost,
        updates_left=None if left is None else max(0, left - 1),
        retrain_due=left is not None and left <= 1,
        repeats=share,
        seconds=None if share is None or whole is None else share * whole,
    )


def _positions(session: Session, generation_id: int, new: NewRequest) -> frozenset[int]:
    gone = select(Removal.position).where(Removal.generation_id == generation_id)
    query = select(Membership.position).where(
        Membership.generation_id == generation_id, Membership.position.not_in(gone)
    )
    if new.named.subjects:
        return frozenset(session.scalars(query.where(Membership.subject_digest.in_(new.named.subjects))))
    return frozenset(
        position
        for part in batches(new.named.samples)
        for position in session.scalars(query.where(Membership.sample_digest.in_(part)))
    )
