"""Models, their generations, retrains and budgets, for the API and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, Field
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from expunge_service.api.problems import not_found
from expunge_service.api.types import Moment
from expunge_service.api.views.consumers import consumer_rows
from expunge_service.api.views.requests import ActionView
from expunge_service.api.views.selection import OPEN, ROWS
from expunge_service.api.views.versions import CLAIMED, GUARANTEE_NOTE, noted
from expunge_service.infra.tables import BudgetEntry, Generation, Model, Task, Version
from expunge_service.infra.time import DAY_SECONDS, SECOND
from expunge_service.models import (
    IS_FIRST,
    SERVED,
    BudgetKind,
    FirstVersion,
    ModelBudget,
    budgets_of,
    how_often,
    is_dry_run,
    plan_of,
    steps_of,
    work_units_of,
)
from expunge_service.requests import Compared, actions
from unlearning.accounting.budget import epsilon_of, updates_left
from unlearning.accounting.policy import Policy

_LOW = 0.8


class PlanView(BaseModel):
    """A retrain that is planned, or runs while the current generation is served. All requests that wait share it."""

    reason: str = Field(description="new_data, port, budget_exhausted, or fallback: no update can serve a request")
    dry_run: bool = Field(description="it only counts what changed in the recipe's data")
    generation: int = Field(description="the generation that it builds")
    waiting: int = Field(description="requests that it will serve, as far as they have come")
    attempt: int
    phase: str | None
    progress: float = Field(description="0 to 1")
    planned_at: Moment
    eta: Moment | None = Field(description="by the time that the last training took; null: it was never timed")


class WorkUnitsView(BaseModel):
    """Parts of a preparation that workers share; a killed worker loses its own."""

    done: int
    count: int


class PreparationView(BaseModel):
    """How far the generation is that is built, and what was measured of it."""

    phase: str | None
    progress: float = Field(description="0 to 1")
    work_units: WorkUnitsView | None = Field(description="null: in one piece, or not yet laid out")
    report: dict[str, Any] | None = Field(
        description="what follows from settings and counts; and, until the first deletion, what preparation measured; "
        "null: none yet, or the store does not answer"
    )
    plan: PlanView | None = Field(description="the retrain that is planned or runs; null: none")


class ChangesView(BaseModel):
    """The recipe's data now, against those that the served generation is trained on, in counts."""

    served: int = Field(description="samples that the served generation still has")
    samples: int = Field(description="samples that the retrain trains on")
    gone: int = Field(description="of served: the recipe does not give them any more")
    changed: int = Field(description="of served: the recipe gives them with another content")
    new: int = Field(description="of samples: the served generation never had them")
    people_new: int
    left_out: int = Field(description="samples of the recipe of people who asked to be forgotten")
    people_left_out: int


class PortedPeopleView(BaseModel):
    """Who is in the sources of a recipe with rows when a model is ported to it, in counts of people."""

    found: int = Field(description="in the sources, those that measure accuracy among them")
    missing: int = Field(description="of the served generation; the sources do not name them")
    left_out: int = Field(description="of found: they, or people of the same row, asked to be forgotten")


class RefusalView(BaseModel):
    what: str
    hint: str


class RetrainView(BaseModel):
    generation: int = Field(description="the generation that it builds")
    status: str = Field(description="candidate, while it waits or is built; then live, refused or ended")
    reason: str = Field(description="new_data, port, budget_exhausted, or fallback: no update can serve a request")
    dry_run: bool = Field(description="it ends once changes or people are counted")
    phase: str | None
    progress: float = Field(description="0 to 1")
    expected_seconds: float | None = Field(description="what the last training took; null: it was never timed")
    changes: ChangesView | None = Field(description="null: not yet counted, or a port")
    people: PortedPeopleView | None = Field(default=None, description="of a port; null: not yet counted, or none")
    refused: RefusalView | None
    planned_at: Moment
    ended_at: Moment | None


class ModelBudgetView(BaseModel):
    """What a model used up since its generation began.

    epsilon: privacy, of models with a bound. rounds: updates, where the method makes so many at most. share: of the
    samples, 0 to 1; under a calibration of the people, whose limit is what was calibrated for. accuracy: what the
    holdout's figure lost, against the fall that the policy allows one update; beyond it a retrain is advised, and
    updates go on.
    """

    kind: BudgetKind
    used: float
    limit: float | None = Field(description="null: nothing ends it")
    left: float | None = Field(description="null: nothing ends it")


class ModelView(BaseModel):
    name: str
    tenant: str
    status: str
    reason: str | None
    recipe: str
    policy: dict[str, Any]
    method: str | None = Field(
        description="of the current version's generation: the policy's, or its fallback where that does not help"
    )
    guarantee: str | None = Field(description="of the current version's generation; decided in preparation")
    guarantee_note: str | None = Field(default=None, description=GUARANTEE_NOTE)
    updates: str | None = Field(
        default=None,
        description="how often it is updated, what that costs a year, and when a deletion is done; null in a list of "
        "models, and while the model is not served",
    )
    ids_compared: Compared | None = Field(
        default=None,
        description="how the id of a deletion request is compared with those of its people. exactly: as it is written, "
        "until the next training; by_forms: also without case, zeros and the like, and no id is called unusual; "
        "by_forms_and_looks: an id that looks as none of them waits, too. null as `updates` is",
    )
    current: int | None = Field(description="number of the version that is served")
    budgets: list[ModelBudgetView] = Field(
        description="of the current version's generation; empty while none is served"
    )
    generation: int | None
    created_at: Moment
    actions: list[ActionView] = Field(description="the steps out, where the model is blocked; and how to stop")
    preparation: PreparationView | None = Field(
        default=None, description="shown with one model; its progress does not change the ETag"
    )
    retrains: list[RetrainView] | None = Field(
        default=None, description="retrains and dry runs, newest first, at most ten; null in a list of models"
    )

    UNTAGGED: ClassVar = {"preparation": True, "retrains": {"__all__": {"phase", "progress"}}}
    """what changes by itself; a decision does not depend on it"""


class BudgetView(BaseModel):
    """Privacy budget of the current version's generation, in whole units of 1e-12 mu^2. It follows from caps and
    counts alone.
    """

    model: str
    generation: int
    guarantee: str
    noise_std: float | None
    max_distance: float | None
    budget_cost: int = Field(description="units that one update costs")
    spent: int
    limit: int | None = Field(description="null: this guarantee has no budget")
    remaining: int | None
    updates: int = Field(description="charges so far, blocked draws included")
    updates_left: int | None = Field(description="null: no limit applies")
    epsilon_spent: float | None
    epsilon_limit: float | None
    delta: float | None


@dataclass(frozen=True)
class Gauge:
    """A generation's budget. ``share`` of it is spent, 0 to 1, in mu squared; ``level`` is ok, low or out."""

    share: float
    level: str
    left: int | None
    epsilon_spent: float | None
    epsilon_limit: float | None
    delta: float | None


@dataclass(frozen=True)
class ModelRow:
    model: Model
    generation: Generation | None
    head: Version | None
    gauge: Gauge | None
    budgets: list[ModelBudget]
    waiting: int
    consumers: Counter[str]
    """current, behind, unknown: how many"""

    @property
    def nearest(self) -> ModelBudget | None:
        """The budget of which most is used, where one ends; else the first; None: there is none."""
        return max(self.budgets, key=lambda budget: budget.used_share or 0.0, default=None)


def find_model(session: Session, tenant_id: str, name: str) -> Model:
    """Return the tenant's model. Raises ApiProblem (404)."""
    model = session.scalar(select(Model).where(Model.tenant_id == tenant_id, Model.name == name))
    if model is None:
        raise not_found("model")
    return model


def locked_model(session: Session, tenant_id: str, name: str) -> Model:
    """Return the tenant's model, its row locked until the transaction ends. Raises ApiProblem (404)."""
    mine = select(Model).where(Model.tenant_id == tenant_id, Model.name == name).with_for_update()
    model = session.scalars(mine.execution_options(populate_existing=True)).one_or_none()
    if model is None:
        raise not_found("model")
    return model


def generation_of(session: Session, model: Model) -> Generation:
    return session.get_one(Generation, model.generation_id)


def preparation_view(session: Session, model: Model) -> PreparationView:
    """Return how far the model's generation is, without its report."""
    generation, plan = generation_of(session, model), plan_of(session, model)
    done, count = work_units_of(session, generation.id if plan is None else plan.generation)
    return PreparationView(
        phase=generation.phase,
        progress=generation.progress,
        work_units=WorkUnitsView(done=done, count=count) if count else None,
        report=None,
        plan=None if plan is None else PlanView(**asdict(plan)),
    )


def _rows() -> Any:
    """Return the query for models with their current version's number and figure, its generation, and the figure of
    the version that the generation began with.
    """
    return (
        select(Model, Version.number, Version.holdout_accuracy, Generation, FirstVersion.holdout_accuracy, *CLAIMED)
        .outerjoin(Version, (Version.id == Model.current_id) & (Version.status == "current"))
        .outerjoin(Generation, Generation.id == Version.generation_id)
        .outerjoin(FirstVersion, IS_FIRST)
    )


def model_view(session: Session, model: Model) -> ModelView:
    """Return the model as clients see it, with its retrains and without its preparation."""
    session.flush()
    view = _view(*session.execute(_rows().where(Model.id == model.id)).one())
    retrains = [retrain_view(each) for each in retrains_of(session, model)]
    if model.status not in SERVED:
        return view.model_copy(update={"retrains": retrains})
    generation = generation_of(session, model)
    updates = {"updates": how_often(model, generation), "ids_compared": Compared.of(generation)}
    return view.model_copy(update={"retrains": retrains, **updates})


def _view(
    model: Model,
    head: int | None,
    accuracy: float | None,
    generation: Generation | None,
    first_accuracy: float | None,
    *claimed: Any,
) -> ModelView:
    budgets = _budgets(model, generation, accuracy, first_accuracy)
    return ModelView(
        name=model.name,
        tenant=model.tenant_id,
        status=model.status,
        reason=model.reason,
        recipe=model.recipe,
        policy=model.policy,
        method=None if generation is None else generation.method,
        guarantee=None if generation is None else generation.guarantee,
        guarantee_note=noted(*claimed),
        current=head,
        budgets=[ModelBudgetView(kind=each.kind, used=each.used, limit=each.limit, left=each.left) for each in budgets],
        generation=model.generation_id,
        created_at=model.created_at,
        actions=[ActionView(**each) for each in actions(steps_of(model), model=[model.name])],
    )


def _budgets(
    model: Model, generation: Generation | None, accuracy: float | None, first_accuracy: float | None
) -> list[ModelBudget]:
    """Return the budgets of a model that is served; none of any other."""
    if generation is None or model.status not in SERVED:
        return []
    return budgets_of(generation, Policy.from_json(model.policy), accuracy, first_accuracy)


def retrain_view(generation: Generation) -> RetrainView:
    report: dict[str, Any] = generation.report or {}
    return RetrainView(
        generation=generation.id,
        status=generation.status,
        reason=report["reason"],
        dry_run=is_dry_run(generation),
        phase=generation.phase if generation.status == "candidate" else None,
        progress=generation.progress,
        expected_seconds=report.get("eta_seconds"),
        changes=report.get("changes"),
        people=report.get("people"),
        refused=report.get("refused"),
        planned_at=generation.created_at,
        ended_at=generation.ended_at,
    )


def model_rows(session: Session, tenant_id: str, after: str = "") -> list[ModelRow]:
    """Return the tenant's models by name, after the name ``after``, and one more than a page shows if there is one."""
    mine = (Model.tenant_id == tenant_id, Model.name > after)
    return _model_rows(session, select(Model.id).where(*mine).order_by(Model.name).limit(ROWS + 1))


def model_row(session: Session, model: Model) -> ModelRow:
    return _model_rows(session, select(Model.id).where(Model.id == model.id))[0]


def _model_rows(session: Session, wanted: Select[str]) -> list[ModelRow]:
    models = session.scalars(wanted).all()
    rows = (
        select(Model, Generation, Version, FirstVersion.holdout_accuracy)
        .outerjoin(Generation, Generation.id == Model.generation_id)
        .outerjoin(Version, Version.id == Model.current_id)
        .outerjoin(FirstVersion, IS_FIRST)
        .where(Model.id.in_(models))
        .order_by(Model.name)
    )
    counts = select(Task.model_id, func.count()).where(Task.model_id.in_(models), Task.status.in_(OPEN))
    waiting: Counter[str] = Counter(dict(session.execute(counts.group_by(Task.model_id)).all()))
    consumers: dict[str, Counter[str]] = {}
    for each in consumer_rows(session, models=models):
        consumers.setdefault(each.model, Counter())[each.status] += 1
    return [
        ModelRow(
            model,
            generation,
            head,
            gauge(generation) if generation and head and generation.budget_cost else None,
            _budgets(model, generation, None if head is None else head.holdout_accuracy, first_accuracy),
            waiting[model.id],
            consumers.get(model.name, Counter()),
        )
        for model, generation, head, first_accuracy in session.execute(rows)
    ]


def gauge(generation: Generation) -> Gauge | None:
    """Return the budget's figures. None: the guarantee has no budget."""
    if generation.budget is None:
        return None
    share = generation.spent / generation.budget if generation.budget else 1.0
    left = updates_left(generation.spent, generation.budget, generation.budget_cost or 0)
    level = "out" if left == 0 else "low" if share > _LOW else "ok"
    spent = None if generation.delta is None else epsilon_of(generation.spent, generation.delta)
    return Gauge(share, level, left, spent, generation.epsilon, generation.delta)


def budget_view(session: Session, model: Model) -> BudgetView:
    generation = generation_of(session, model)
    charges = select(func.count()).where(BudgetEntry.generation_id == generation.id, BudgetEntry.budget_cost > 0)
    budget = gauge(generation)
    return BudgetView(
        model=model.name,
        generation=generation.id,
        guarantee=generation.guarantee,
        noise_std=generation.noise_std,
        max_distance=generation.max_distance if budget else None,
        budget_cost=generation.budget_cost,
        spent=generation.spent,
        limit=generation.budget,
        remaining=None if generation.budget is None else generation.budget - generation.spent,
        updates=session.scalar(charges) or 0,
        updates_left=budget.left if budget else None,
        epsilon_spent=budget.epsilon_spent if budget else None,
        epsilon_limit=budget.epsilon_limit if budget else None,
        delta=budget.delta if budget else None,
    )


def budget_changes(session: Session, generation: Generation) -> list[tuple[int, int]]:
    """Return (moment, updates left) at the generation's begin and after each of the newest thousand charges.

    The list is empty where no limit applies to the updates.
    """
    if not generation.budget or not generation.budget_cost:
        return []
    newest = (
        select(BudgetEntry.created_at, BudgetEntry.budget_cost)
        .where(BudgetEntry.generation_id == generation.id)
        .order_by(BudgetEntry.id.desc())
        .limit(1000)
    )
    rows = list(reversed(session.execute(newest).all()))
    spent = generation.spent - sum(cost for _, cost in rows)
    changes = [(generation.created_at, updates_left(spent, generation.budget, generation.budget_cost) or 0)]
    for at, cost in rows:
        spent += cost
        changes.append((at, updates_left(spent, generation.budget, generation.budget_cost) or 0))
    return changes


def charges_lately(session: Session, generation: Generation, at: int) -> tuple[int, float]:
    """Return how many updates were charged in the last four weeks or its life, and that time in seconds."""
    since = max(generation.created_at, at - 4 * 7 * DAY_SECONDS * SECOND)
    charges = select(func.count()).where(
        BudgetEntry.generation_id == generation.id, BudgetEntry.budget_cost > 0, BudgetEntry.created_at >= since
    )
    return session.scalar(charges) or 0, (at - since) / SECOND


def model_names(session: Session, tenant_id: str) -> Sequence[str]:
    return session.scalars(select(Model.name).where(Model.tenant_id == tenant_id).order_by(Model.name)).all()


def model_page(session: Session, tenant_id: str, after: str | None, limit: int) -> list[ModelView]:
    """Return ``limit`` models by name, after the name ``after``, and one more if there is one."""
    rows = _rows().where(Model.tenant_id == tenant_id, Model.name > (after or ""))
    return [_view(*row) for row in session.execute(rows.order_by(Model.name).limit(limit + 1))]


def retrains_of(session: Session, model: Model) -> list[Generation]:
    """Return the model's newest generations that a retrain or a dry run planned, at most ten, newest first."""
    newest = select(Generation).where(Generation.model_id == model.id).order_by(Generation.id.desc()).limit(10)
    return [each for each in session.scalars(newest) if "reason" in (each.report or {})]
