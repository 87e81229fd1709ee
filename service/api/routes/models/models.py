"""Models: registering them, and showing their state, their preparation and their budget."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StringConstraints, model_validator
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import Caller, Scope
from expunge.service.api.dependencies import Running, holding, problems, reading
from expunge.service.api.http.etag import IfNoneMatch, shown
from expunge.service.api.http.pagination import Limit, NameCursor, Page, link
from expunge.service.api.openapi import answer
from expunge.service.api.problems import ApiProblem, asking_store, not_found
from expunge.service.api.request_views import ActionView
from expunge.service.api.types import LARGEST_NUMBER, WHOLE, ModelName, Moment, RecipeName
from expunge.service.infra.tables import BudgetEntry, Generation, Model, Version
from expunge.service.infra.tenants import recipes_of
from expunge.service.models.figures import Figures
from expunge.service.models.policy import require_known
from expunge.service.models.recipe_files import require_recipe
from expunge.service.models.register import register
from expunge.service.models.retire import steps_of
from expunge.service.models.retrain_plan import plan_of, work_units_of
from expunge.service.requests.reasons import actions
from unlearning.accounting.budget import epsilon_of, updates_left
from unlearning.accounting.policy import LARGEST_ORDERS, Policy, PolicyError
from unlearning.methods import NAMES

router = APIRouter(tags=["models"])
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]
Reader = Annotated[Caller, Depends(holding(Scope.MODELS_READ))]
_PATH = "/v1/models"
_GUARANTEES = Literal["exact", "proved", "calibrated", "estimated", "none"]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Word = Annotated[str, StringConstraints(max_length=200)]
_Whole = Annotated[int, Field(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
_Real = Annotated[StrictFloat, Field(allow_inf_nan=False)]
_Option = StrictBool | _Whole | _Real | _Word | Annotated[list[_Whole | _Real], Field(max_length=10)] | None
_Options = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")], _Option],
    Field(max_length=40, json_schema_extra={"additionalProperties": False}),
]


class CalibrationSettings(BaseModel):
    """How the guarantee calibrated is measured."""

    model_config = ConfigDict(extra="forbid")

    alpha: _Number | None = Field(default=None, description="the share of request streams that may leave the bound")
    orders: Annotated[int, Field(strict=True, ge=1, le=LARGEST_ORDERS), WHOLE] | None = None
    sizes: (
        Annotated[list[Annotated[int, Field(strict=True, ge=1, le=LARGEST_NUMBER), WHOLE]], Field(max_length=100)]
        | None
    ) = None


class Registration(BaseModel):
    """A model to look after: its recipe, and how it forgets. What is left out takes the policy's default."""

    model_config = ConfigDict(extra="forbid")

    name: ModelName
    recipe: RecipeName
    method: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")] | None = Field(
        default=None, description="auto, the default: preparation chooses once, by the counts of samples and features"
    )
    fallback: Literal["retrain", "hold"] | None = Field(
        default=None, description="what happens where the method cannot go on; retrain is the default"
    )
    guarantee: _GUARANTEES | None = Field(
        default=None, description="the least that may be published; calibrated and estimated only where they are named"
    )
    calibration: CalibrationSettings | None = None
    epsilon: _Number | None = None
    delta: _Number | None = None
    noise_std: _Number | None = None
    max_distance: _Number | None = None
    granularity: Literal["subject", "sample"] | None = None
    reference: Literal["renormalised", "fixed-denominator"] | None = None
    threshold: _Number | None = None
    complete_when: Literal["published", "served"] | None = None
    leave_out_forgotten: StrictBool = Field(
        default=False,
        description="leave out people who asked to be forgotten before this registration; false: it is refused",
    )
    on_unchecked_feed: Literal["refuse", "accept"] | None = Field(
        default=None,
        description="entries of a state's deletion lists that the recipe's identities cannot be compared with",
    )
    batch: Annotated[int, Field(strict=True, ge=0, le=31_536_000), WHOLE] | None = Field(
        default=None, description="the least time between updates, in seconds"
    )
    collect_seconds: Annotated[int, Field(strict=True, ge=0, le=31_536_000), WHOLE] | None = Field(
        default=None, description="how long deletions that repeat the whole training may wait for one another"
    )
    retrain_every: Annotated[int, Field(strict=True, ge=0, le=31_536_000), WHOLE] | None = Field(
        default=None, description="how often to train again on the recipe's present data; 0: when somebody asks"
    )
    max_accuracy_drop: _Number | None = None
    options: _Options = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, sent: Any) -> Any:
        if isinstance(sent, dict):
            require_known(sent)
        return sent

    def policy(self) -> Policy:
        """Return the policy. Raises ApiProblem (422) that names the field and what is allowed, not the value."""
        record = self.model_dump(exclude={"name", "recipe", "leave_out_forgotten"}, exclude_unset=True)
        try:
            return Policy.from_json(record, NAMES)
        except PolicyError as error:
            errors = [{"pointer": f"/{error.field}", "detail": error.hint}]
            raise ApiProblem(422, "invalid_policy", "The policy cannot be used; see errors.", errors) from None
        except ValueError:
            errors = [
                {
                    "pointer": "",
                    "detail": "epsilon, delta, noise_std and max_distance together give no countable budget.",
                }
            ]
            raise ApiProblem(422, "invalid_policy", "The policy cannot be used; see errors.", errors) from None


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
    current: int | None = Field(description="number of the version that is served")
    generation: int | None
    created_at: Moment
    actions: list[ActionView] = Field(description="the steps out, where the model is blocked; and how to stop")


class PlanView(BaseModel):
    """A retrain that is planned, or runs while the current generation is served. All who wait for one share it."""

    reason: str = Field(description="new_data, budget_exhausted, or fallback: no update can serve a request")
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
    model: str
    status: str = Field(description="of the model")
    phase: str | None
    progress: float = Field(description="0 to 1")
    work_units: WorkUnitsView | None = Field(description="null: in one piece, or not yet laid out")
    reason: str | None
    report: dict[str, Any] | None = Field(
        description="what follows from settings and counts; and, until the first deletion, what preparation measured"
    )
    plan: PlanView | None = Field(description="the retrain that is planned or runs; null: none")


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
    updates_left: int | None = Field(description="null: nothing limits them")
    epsilon_spent: float | None
    epsilon_limit: float | None
    delta: float | None


@router.post(
    _PATH,
    status_code=202,
    response_model=ModelView,
    responses=problems(409) | answer(202, "Location", "Retry-After"),
    summary="Register a model",
)
def create(body: Registration, service: Running, caller: Admin, response: Response) -> ModelView:
    policy = body.policy()
    require_recipe(recipes_of(service.settings.recipes, caller.tenant_id), body.recipe)
    with service.database.write() as session:
        model = register(
            session,
            caller.tenant_id,
            body.name,
            body.recipe,
            policy,
            leave_out_forgotten=body.leave_out_forgotten,
        )
        view = _view(model, None, None, None)
    service.notify([model.id])
    response.headers["Location"] = f"{_PATH}/{model.name}"
    response.headers["Retry-After"] = "2"
    return view


@router.get(_PATH, response_model=Page[ModelView], responses=problems(), summary="List models by name")
def index(
    *,
    request: Request,
    response: Response,
    service: Running,
    caller: Reader,
    cursor: NameCursor = None,
    limit: Limit = 50,
) -> Page[ModelView]:
    rows = _rows().where(Model.tenant_id == caller.tenant_id)
    if cursor is not None:
        rows = rows.where(Model.name > cursor)
    with service.database.read() as session:
        found = session.execute(rows.order_by(Model.name).limit(limit + 1)).all()
    next_cursor = found[limit - 1][0].name if len(found) > limit else None
    link(request, response, next_cursor)
    data = [_view(*row) for row in found[:limit]]
    return Page(data=data, next_cursor=next_cursor, has_more=next_cursor is not None)


@router.get(_PATH + "/{name}", response_model=ModelView, responses=reading(404), summary="Show a model")
def show(
    name: ModelName, service: Running, caller: Reader, response: Response, if_none_match: IfNoneMatch = None
) -> ModelView:
    with service.database.read() as session:
        row = session.execute(_rows().where(Model.tenant_id == caller.tenant_id, Model.name == name)).one_or_none()
    if row is None:
        raise not_found("model")
    return shown(_view(*row), response, if_none_match)


@router.get(
    _PATH + "/{name}/preparation",
    response_model=PreparationView,
    responses=problems(404),
    summary="Progress of preparation",
)
def preparation(name: ModelName, service: Running, caller: Reader, response: Response) -> PreparationView:
    with service.database.read() as session:
        model = find(session, caller.tenant_id, name)
        generation = session.get_one(Generation, model.generation_id)
        plan = plan_of(session, model)
        done, count = work_units_of(session, generation.id if plan is None else plan.generation)
    if model.status == "preparing" or plan is not None:
        response.headers["Retry-After"] = "1"
    with asking_store():
        report = Figures(service.store.folder).shown(generation)
    return PreparationView(
        model=model.name,
        status=model.status,
        phase=generation.phase,
        progress=generation.progress,
        work_units=WorkUnitsView(done=done, count=count) if count else None,
        reason=model.reason,
        report=report,
        plan=None if plan is None else PlanView(**asdict(plan)),
    )


@router.get(_PATH + "/{name}/budget", response_model=BudgetView, responses=problems(404), summary="Privacy budget")
def budget(name: ModelName, service: Running, caller: Reader) -> BudgetView:
    with service.database.read() as session:
        model = find(session, caller.tenant_id, name)
        generation = session.get_one(Generation, model.generation_id)
        charges = select(func.count()).where(BudgetEntry.generation_id == generation.id, BudgetEntry.budget_cost > 0)
        updates = session.scalar(charges) or 0
    limited = generation.budget is not None
    return BudgetView(
        model=model.name,
        generation=generation.id,
        guarantee=generation.guarantee,
        noise_std=generation.noise_std,
        max_distance=generation.max_distance if limited else None,
        budget_cost=generation.budget_cost,
        spent=generation.spent,
        limit=generation.budget,
        remaining=None if generation.budget is None else generation.budget - generation.spent,
        updates=updates,
        updates_left=updates_left(generation.spent, generation.budget, generation.budget_cost),
        epsilon_spent=epsilon_of(generation.spent, generation.delta)
        if limited and generation.delta is not None
        else None,
        epsilon_limit=generation.epsilon if limited else None,
        delta=generation.delta if limited else None,
    )


def find(session: Session, tenant_id: str, name: str) -> Model:
    """Return the tenant's model. Raises ApiProblem (404)."""
    model = session.scalar(select(Model).where(Model.tenant_id == tenant_id, Model.name == name))
    if model is None:
        raise not_found("model")
    return model


def _rows() -> Any:
    """Return the query for models with the number of their current version, and its generation's method and
    guarantee.
    """
    return (
        select(Model, Version.number, Generation.method, Generation.guarantee)
        .outerjoin(Version, (Version.id == Model.current_id) & (Version.status == "current"))
        .outerjoin(Generation, Generation.id == Version.generation_id)
    )


def view_of(session: Session, model: Model) -> ModelView:
    """Return the model as clients see it."""
    session.flush()
    return _view(*session.execute(_rows().where(Model.id == model.id)).one())


def locked(session: Session, tenant_id: str, name: str) -> Model:
    """Return the tenant's model, its row locked until the transaction ends. Raises ApiProblem (404)."""
    mine = select(Model).where(Model.tenant_id == tenant_id, Model.name == name).with_for_update()
    model = session.scalars(mine.execution_options(populate_existing=True)).one_or_none()
    if model is None:
        raise not_found("model")
    return model


def _view(model: Model, head: int | None, method: str | None, guarantee: str | None) -> ModelView:
    return ModelView(
        name=model.name,
        tenant=model.tenant_id,
        status=model.status,
        reason=model.reason,
        recipe=model.recipe,
        policy=model.policy,
        method=method,
        guarantee=guarantee,
        current=head,
        generation=model.generation_id,
        created_at=model.created_at,
        actions=[ActionView(**each) for each in actions(steps_of(model), model=[model.name])],
    )
