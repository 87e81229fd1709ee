"""Models: registering them, and showing their state, their preparation and their budget."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StringConstraints
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.access.api_keys import Caller, Scope
from service.api.dependencies import Running, holding, problems, reading
from service.api.http.etag import IfNoneMatch, shown
from service.api.http.pagination import Limit, NameCursor, Page, link
from service.api.openapi import answer
from service.api.problems import Problem, not_found
from service.api.types import LARGEST_NUMBER, WHOLE, ModelName, Moment, RecipeName
from service.infra.tables import BudgetEntry, Lineage, Model, Version
from service.infra.tenants import recipes_of
from service.models.figures import Figures
from service.models.recipe_files import NoRecipe, require_recipe
from service.models.register import NameTaken, register
from service.models.retrain_plan import plan_of, shards_of
from unlearning.accounting.budget import epsilon_of, releases_left
from unlearning.accounting.policy import LARGEST_ORDERS, Policy, PolicyError

router = APIRouter(tags=["models"])
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]
Reader = Annotated[Caller, Depends(holding(Scope.MODELS_READ))]
_PATH = "/v1/models"
_BASES = Literal["exact", "proved", "calibrated", "estimated", "none"]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Word = Annotated[str, StringConstraints(max_length=200)]
_Whole = Annotated[int, Field(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
_Option = StrictBool | _Whole | Annotated[StrictFloat, Field(allow_inf_nan=False)] | _Word | None
_Options = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")], _Option],
    Field(max_length=40, json_schema_extra={"additionalProperties": False}),
]


class Registration(BaseModel):
    """A model to look after: its recipe, and how it forgets. What is left out takes the policy's default."""

    model_config = ConfigDict(extra="forbid")

    name: ModelName
    recipe: RecipeName
    method: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")]
    fallback: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")] | None = None
    require: _BASES | None = None
    basis: _BASES | None = None
    alpha: _Number | None = None
    orders: Annotated[int, Field(strict=True, ge=1, le=LARGEST_ORDERS), WHOLE] | None = None
    sizes: Annotated[list[Annotated[int, Field(strict=True, ge=1), WHOLE]], Field(max_length=100)] | None = None
    epsilon: _Number | None = None
    delta: _Number | None = None
    sigma: _Number | None = None
    delta_cap: _Number | None = None
    granularity: Literal["subject", "sample"] | None = None
    reference: Literal["renormalised", "fixed-denominator"] | None = None
    threshold: _Number | None = None
    on_exhausted: Literal["retrain", "rewind", "hold"] | None = None
    complete_when: Literal["published", "served"] | None = None
    forgotten_in_recipe: Literal["refuse", "leave_out"] | None = Field(
        default=None, description="samples of people who asked to be forgotten before this registration"
    )
    cadence_seconds: Annotated[int, Field(strict=True, ge=0, le=31_536_000), WHOLE] | None = None
    utility_tolerance: _Number | None = None
    options: _Options = Field(default_factory=dict)
    fallback_options: _Options = Field(default_factory=dict, description="fields of the fallback")

    def policy(self) -> Policy:
        """Raises Problem (422) that names the field and what is allowed, not the value."""
        record = self.model_dump(exclude={"name", "recipe"}, exclude_unset=True)
        try:
            return Policy.from_json(record)
        except PolicyError as error:
            errors = [{"pointer": f"/{error.field}", "detail": error.hint}]
            raise Problem(422, "invalid_policy", "The policy cannot be used; see errors.", errors) from None
        except ValueError:
            errors = [
                {"pointer": "", "detail": "epsilon, delta, sigma and delta_cap together give no countable budget."}
            ]
            raise Problem(422, "invalid_policy", "The policy cannot be used; see errors.", errors) from None


class ModelView(BaseModel):
    name: str
    tenant: str
    status: str
    reason: str | None
    recipe: str
    policy: dict[str, Any]
    method: str | None = Field(
        description="of the head's lineage: the policy's, or its fallback where that does not help"
    )
    basis: str | None = Field(description="of the head's lineage; decided in preparation")
    head: int | None = Field(description="number of the version that is served")
    lineage: int | None
    created_at: Moment


class PlanView(BaseModel):
    """A retrain that is planned or runs beside the served lineage: one for everybody who waits for it."""

    reason: str = Field(description="budget_exhausted, or fallback: no release can serve a request")
    lineage: int = Field(description="the lineage that it builds")
    waiting: int = Field(description="requests that it will serve, as far as they have come")
    attempt: int
    phase: str | None
    progress: float = Field(description="0 to 1")
    planned_at: Moment
    eta: Moment | None = Field(description="by the time that the last training took; null: it was never timed")


class ShardsView(BaseModel):
    """Parts of a preparation that workers share; a killed worker loses its own."""

    done: int
    count: int


class PreparationView(BaseModel):
    model: str
    status: str = Field(description="of the model")
    phase: str | None
    progress: float = Field(description="0 to 1")
    shards: ShardsView | None = Field(description="null: in one piece, or not yet laid out")
    reason: str | None
    report: dict[str, Any] | None = Field(
        description="what follows from settings and counts; and, until the first deletion, what preparation measured"
    )
    plan: PlanView | None = Field(description="the retrain that is planned or runs; null: none")


class BudgetView(BaseModel):
    """Privacy budget of the head's lineage, in whole units of 1e-12 mu^2. It follows from caps and counts alone."""

    model: str
    lineage: int
    basis: str
    sigma: float | None
    delta_cap: float | None
    charge: int = Field(description="units that one release costs")
    spent: int
    limit: int | None = Field(description="null: this basis has no budget")
    remaining: int | None
    releases: int = Field(description="charges so far, held draws included")
    releases_left: int | None = Field(description="null: nothing limits them")
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
    try:
        require_recipe(recipes_of(service.settings.recipes, caller.tenant_id), body.recipe)
    except NoRecipe as error:
        raise Problem(422, "no_recipe", str(error), [{"pointer": "/recipe", "detail": error.hint}]) from None
    with service.database.write() as session:
        try:
            model = register(session, caller.tenant_id, body.name, body.recipe, policy)
        except NameTaken:
            errors = [{"pointer": "/name", "detail": "This name is taken."}]
            raise Problem(409, "model_exists", "There is a model of this name; choose another.", errors) from None
        view = _view(model, None, None, None)
    service.nudge([model.id])
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
        lineage = session.get_one(Lineage, model.lineage_id)
        plan = plan_of(session, model)
        done, count = shards_of(session, lineage.id if plan is None else plan.lineage)
    if model.status == "preparing" or plan is not None:
        response.headers["Retry-After"] = "1"
    return PreparationView(
        model=model.name,
        status=model.status,
        phase=lineage.phase,
        progress=lineage.progress,
        shards=ShardsView(done=done, count=count) if count else None,
        reason=model.reason,
        report=Figures(service.settings.store).shown(lineage),
        plan=None if plan is None else PlanView(**asdict(plan)),
    )


@router.get(_PATH + "/{name}/budget", response_model=BudgetView, responses=problems(404), summary="Privacy budget")
def budget(name: ModelName, service: Running, caller: Reader) -> BudgetView:
    with service.database.read() as session:
        model = find(session, caller.tenant_id, name)
        lineage = session.get_one(Lineage, model.lineage_id)
        charges = select(func.count()).where(BudgetEntry.lineage_id == lineage.id, BudgetEntry.charge > 0)
        releases = session.scalar(charges) or 0
    limited = lineage.budget is not None
    return BudgetView(
        model=model.name,
        lineage=lineage.id,
        basis=lineage.basis,
        sigma=lineage.sigma,
        delta_cap=lineage.delta_cap if limited else None,
        charge=lineage.charge,
        spent=lineage.spent,
        limit=lineage.budget,
        remaining=None if lineage.budget is None else lineage.budget - lineage.spent,
        releases=releases,
        releases_left=releases_left(lineage.spent, lineage.budget, lineage.charge),
        epsilon_spent=epsilon_of(lineage.spent, lineage.delta) if limited and lineage.delta is not None else None,
        epsilon_limit=lineage.epsilon if limited else None,
        delta=lineage.delta if limited else None,
    )


def find(session: Session, tenant_id: str, name: str) -> Model:
    """The tenant's model. Raises Problem (404)."""
    model = session.scalar(select(Model).where(Model.tenant_id == tenant_id, Model.name == name))
    if model is None:
        raise not_found("model")
    return model


def _rows() -> Any:
    """Models with the number of their head, and the method and basis of its lineage."""
    return (
        select(Model, Version.number, Lineage.method, Lineage.basis)
        .outerjoin(Version, Version.id == Model.head_id)
        .outerjoin(Lineage, Lineage.id == Version.lineage_id)
    )


def _view(model: Model, head: int | None, method: str | None, basis: str | None) -> ModelView:
    return ModelView(
        name=model.name,
        tenant=model.tenant_id,
        status=model.status,
        reason=model.reason,
        recipe=model.recipe,
        policy=model.policy,
        method=method,
        basis=basis,
        head=head,
        lineage=model.lineage_id,
        created_at=model.created_at,
    )
