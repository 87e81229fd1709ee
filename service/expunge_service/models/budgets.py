"""What limits a served model: privacy, updates of its method, the share that was forgotten, and accuracy.

Each publication adds to a count in its generation's report, so that no reader has to count what was forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, aliased

from expunge_service.infra.db import batches
from expunge_service.infra.tables import Generation, Membership, Removal, Version
from unlearning.accounting.budget import epsilon_of
from unlearning.accounting.policy import Policy

USAGE = "usage"
"""in a generation's report: its ``Usage``"""
ROUNDS = "rounds"
"""in a generation's manifest, where its method makes a greatest number of updates: that number"""
FirstVersion = aliased(Version)
IS_FIRST: ColumnElement[bool] = (FirstVersion.model_id == Generation.model_id) & (
    FirstVersion.number == Generation.report[(USAGE, "first_version")].as_integer()
)
"""joins to a generation the version that it began with"""


class BudgetKind(StrEnum):
    """What a budget counts. The names are labels of a metric, so there are few and they stay."""

    EPSILON = "epsilon"
    ROUNDS = "rounds"
    SHARE = "share"
    ACCURACY = "accuracy"


@dataclass(frozen=True)
class ModelBudget:
    """One budget of a served model, in the unit of its kind; ``limit`` is None where nothing ends it."""

    kind: BudgetKind
    used: float
    limit: float | None

    @property
    def left(self) -> float | None:
        return None if self.limit is None else max(0.0, round(self.limit - self.used, 12))

    @property
    def used_share(self) -> float | None:
        """How much of the limit is used, 0 to 1; None where nothing ends it."""
        return None if self.limit is None else min(1.0, self.used / self.limit) if self.limit else 1.0


@dataclass(frozen=True)
class Usage:
    """Counts over a generation's versions. ``first_version`` is the number of the one that it began with.

    ``people`` is counted for a calibrated generation, whose limit it is; a person whose samples leave in two updates
    counts twice there.
    """

    first_version: int
    updates: int
    samples: int
    people: int

    @classmethod
    def of(cls, generation: Generation) -> Usage | None:
        """Read the generation's count. None: a release before this count published its last version."""
        record = (generation.report or {}).get(USAGE)
        return None if record is None else cls(**record)


def count_use(session: Session, version: Version, positions: Sequence[int]) -> None:
    """Count a version that forgets the samples at these positions of its generation; they are marked already."""
    generation = session.get_one(Generation, version.generation_id)
    before = Usage.of(generation)
    if before is None:
        after = counted(session, generation)
    else:
        after = replace(
            before,
            updates=before.updates + bool(positions),
            samples=before.samples + len(positions),
            people=before.people + _people_at(session, generation, positions),
        )
    generation.report = (generation.report or {}) | {USAGE: asdict(after)}


def counted(session: Session, generation: Generation) -> Usage:
    """Count all that the generation's versions forgot, from the tables: it reads the whole history."""
    first = select(func.min(Version.number)).where(
        Version.model_id == generation.model_id, Version.generation_id == generation.id
    )
    marks = select(Removal.position, Removal.version_id).where(Removal.generation_id == generation.id)
    rows = session.execute(marks).all()
    return Usage(
        first_version=session.scalars(first).one() or 0,
        updates=len({version_id for _, version_id in rows}),
        samples=len(rows),
        people=_people_at(session, generation, [position for position, _ in rows]),
    )


def _people_at(session: Session, generation: Generation, positions: Sequence[int]) -> int:
    """Count the people at these positions of a calibrated generation; 0 for any other."""
    if not positions or (generation.manifest or {}).get("design") is None:
        return 0
    there = select(Membership.holder).distinct().where(Membership.generation_id == generation.id)
    rows = (session.scalars(there.where(Membership.position.in_(batch))) for batch in batches(positions))
    return len(set().union(*rows))


def budgets_of(
    generation: Generation, policy: Policy, accuracy: float | None, first_accuracy: float | None
) -> list[ModelBudget]:
    """Return the budgets of a served generation, by ``BudgetKind``.

    Args:
        accuracy: of the current version on the holdout; None: it has none.
        first_accuracy: of the version that the generation began with.
    """
    return [*_epsilon(generation), *_forgotten(generation), *_accuracy(policy, accuracy, first_accuracy)]


def _epsilon(generation: Generation) -> Iterator[ModelBudget]:
    """Epsilon of all updates so far, where updates are charged."""
    if generation.budget_cost and generation.delta is not None:
        yield ModelBudget(BudgetKind.EPSILON, epsilon_of(generation.spent, generation.delta), generation.epsilon)


def _forgotten(generation: Generation) -> Iterator[ModelBudget]:
    """Updates, where the method makes so many at most; and the share of samples, or of people under a calibration."""
    usage, manifest = Usage.of(generation), generation.manifest or {}
    if usage is None:
        return
    if manifest.get(ROUNDS) is not None:
        yield ModelBudget(BudgetKind.ROUNDS, usage.updates, manifest[ROUNDS])
    design, people, samples = manifest.get("design"), manifest.get("people"), manifest.get("samples")
    if design is not None and people:
        yield ModelBudget(BudgetKind.SHARE, usage.people / people, design["sizes"][-1] / people)
    elif samples:
        yield ModelBudget(BudgetKind.SHARE, usage.samples / samples, None)


def _accuracy(policy: Policy, accuracy: float | None, first_accuracy: float | None) -> Iterator[ModelBudget]:
    """What the holdout's figure lost in all, against what the policy lets one update cost."""
    if accuracy is not None and first_accuracy is not None:
        lost = max(0.0, round(first_accuracy - accuracy, 12))
        yield ModelBudget(BudgetKind.ACCURACY, lost, policy.max_accuracy_drop)
