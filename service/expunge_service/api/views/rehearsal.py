"""A rehearsal of a deletion: what a request would do, and the letter that would follow. No row is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.api.views.history import letter_facts
from expunge_service.certificates import ModelOutcome, PersonalLetter, foreseen, letter
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.tables import DeletionRequest, Generation, Model, Version
from expunge_service.infra.time import DAY_SECONDS, SECOND, instant
from expunge_service.models import candidate_of
from expunge_service.models import foreseen as done_in
from expunge_service.queue import held_positions
from expunge_service.requests import (
    PLANNED_DAYS,
    Cost,
    Named,
    Order,
    Question,
    Reason,
    Status,
    Windows,
    decide,
    estimate,
)
from unlearning.accounting.certificate import Claim, Guarantee


@dataclass(frozen=True)
class RehearsedPart:
    """What one model would do. ``version``: the one that would be published; None: none, or not known."""

    cost: Cost
    version: int | None
    reason: Reason | None
    expected_at: int | None
    claim: Claim | None
    """of that version; None: it cannot be foreseen"""
    guarantee: str | None
    """of that version; None: it may be another generation's"""


@dataclass(frozen=True)
class Rehearsal:
    request: DeletionRequest
    """as it would be accepted; it is in no table"""
    parts: tuple[RehearsedPart, ...]
    preparing: tuple[str, ...]
    """models with people not known yet"""
    letter: PersonalLetter | None
    """as it would read; None: a decision has to come first"""
    question: Question | None
    """about the id, which would be asked first"""


def rehearse(session: Session, pepper: Pepper, tenant_id: str, order: Order, windows: Windows) -> Rehearsal:
    """Return what a verified order would do, if it were the next that is accepted. Raises RequestRefused."""
    new = decide(session, pepper, tenant_id, replace(order, verified=True), windows)
    row = DeletionRequest(**new.row)
    costs = estimate(session, new)
    ready = row.created_at + int(windows.cancel_seconds * SECOND)
    parts = []
    for model, cost in costs:
        large = model.id in new.found.large
        begins = row.created_at + int(windows.large_seconds * SECOND) if large else ready
        part = _part(session, model, cost, begins, row.due_at or row.received_at + PLANNED_DAYS * DAY_SECONDS * SECOND)
        parts.append(replace(part, reason=Reason.LARGE) if large else part)
    being_prepared = select(Model.name).where(
        Model.id.in_([key for key, _ in new.found.places]), Model.status == "preparing"
    )
    preparing = tuple(sorted(session.scalars(being_prepared)))
    already = sorted({*new.found.names}.difference(preparing, (model.name for model, _ in costs)))
    question = None if new.asked is None else new.asked.question
    said = None if preparing or question is not None else _letter(session, row, parts, already, new.named)
    return Rehearsal(row, tuple(parts), preparing, said, question)


def _part(session: Session, model: Model, cost: Cost, begins: int, due_at: int) -> RehearsedPart:
    if cost.positions & held_positions(session, model.tenant_id, model.generation_id or 0):
        return RehearsedPart(cost, None, Reason.LEGAL_HOLD, None, None, None)
    reason, at = done_in(session, model, begins, due_at)
    current = session.get(Version, model.current_id)
    number = None if current is None or reason is Reason.BUDGET_EXHAUSTED else current.number + 1
    claim = guarantee = None
    own = number is not None and reason is not Reason.AWAITING_RETRAIN and candidate_of(session, model.id) is None
    if current is not None and own and current.generation_id == model.generation_id:
        claim, guarantee = _next_claim(session, model, current, cost), cost.guarantee
    return RehearsedPart(cost, number, reason, at, claim, guarantee)


def _next_claim(session: Session, model: Model, current: Version, cost: Cost) -> Claim | None:
    """Return what the next update of the generation claims. None: it is not known."""
    generation = session.get_one(Generation, model.generation_id)
    try:
        claim = Claim.from_json(current.claim)
        if claim.guarantee in (Guarantee.EXACT, Guarantee.NONE):
            return claim
        return Claim.of(
            **{name: getattr(claim, name) for name in _KEPT},
            updates=claim.updates + 1,
            spent=generation.spent + cost.budget_cost,
        )
    except ValueError:  # another release wrote it, or the update exceeds the budget
        return None


_KEPT = (
    "method", "guarantee", "reference", "noise_std", "max_distance", "delta", "limit", "samples", "people",
    "assumptions", "checked", "tried", "declared", "parts", "constants", "secret_state",
)  # fmt: skip


def _letter(
    session: Session,
    row: DeletionRequest,
    parts: list[RehearsedPart],
    already: list[str],
    named: Named,
) -> PersonalLetter | None:
    """Return the letter after every part was done. Of a claim that cannot be foreseen it is silent.

    ``already``: the models that an earlier request deleted these samples from.
    """
    if any(part.version is None for part in parts):
        return None
    claims = [
        (part.cost.model, part.version, part.cost.samples, part.claim)
        for part in parts
        if part.version is not None and part.claim is not None
    ]
    ends = max((part.expected_at or row.created_at for part in parts), default=row.created_at)
    facts = letter_facts(session, row, named)
    return letter(
        replace(
            facts,
            status=Status.COMPLETED,
            completed=instant(ends).astimezone(facts.received.tzinfo),
            parts=[
                *(_done(part) for part in parts),
                *(ModelOutcome(name, Reason.ALREADY_DELETED, None, 0) for name in already),
            ],
            statement=foreseen(claims) if parts and len(claims) == len(parts) else None,
        )
    )


def _done(part: RehearsedPart) -> ModelOutcome:
    claim = {"guarantee": part.guarantee or Guarantee.NONE} if part.claim is None else part.claim.to_json()
    return ModelOutcome(part.cost.model, None, part.version, part.cost.samples, claim)
