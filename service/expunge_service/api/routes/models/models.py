"""Models: registering them, and showing their state, their preparation and their budget."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StringConstraints, model_validator

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, problems, reading, require_scope
from expunge_service.api.http.etag import IfNoneMatch, shown
from expunge_service.api.http.pagination import Limit, NameCursor, Page, after_page
from expunge_service.api.http.polling import retry_after
from expunge_service.api.openapi import answer
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import LARGEST_NUMBER, WHOLE, ModelName, PlaceName, RecipeName
from expunge_service.api.views.models import (
    BudgetView,
    ModelView,
    budget_view,
    find_model,
    generation_of,
    model_page,
    model_view,
    preparation_view,
)
from expunge_service.infra.db import now
from expunge_service.infra.tenants import recipes_of
from expunge_service.models import Figures, register, require_known, require_recipe
from unlearning.accounting.policy import LARGEST_ORDERS, Policy, PolicyError
from unlearning.methods import NAMES

router = APIRouter(tags=["models"])
Admin = Annotated[Caller, Depends(require_scope(Scope.MODELS_ADMIN))]
Reader = Annotated[Caller, Depends(require_scope(Scope.MODELS_READ))]
_PATH = "/v1/models"
_GUARANTEES = Literal["exact", "proved", "calibrated", "estimated", "none"]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Word = Annotated[str, StringConstraints(max_length=200)]
_Whole = Annotated[int, Field(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
_Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_NUMBER), WHOLE]
_Real = Annotated[StrictFloat, Field(allow_inf_nan=False)]
_Numbers = Annotated[list[_Whole | _Real], Field(max_length=10, fail_fast=True)]
_Option = StrictBool | _Whole | _Real | _Word | _Numbers | None
_Options = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")], _Option],
    Field(max_length=40, json_schema_extra={"additionalProperties": False}),
]


class CalibrationSettings(BaseModel):
    """How the guarantee calibrated is measured."""

    model_config = ConfigDict(extra="forbid")

    alpha: _Number | None = Field(default=None, description="the share of request streams that may leave the bound")
    orders: Annotated[int, Field(strict=True, ge=1, le=LARGEST_ORDERS), WHOLE] | None = None
    sizes: Annotated[list[_Count], Field(max_length=100, fail_fast=True)] | None = None


class Registration(BaseModel):
    """A model to look after: its recipe, and how it forgets. What is left out takes the policy's default."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "digits", "recipe": "digits", "method": "recollection", "epsilon": 8}]
        },
    )

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
    complete_when: Literal["published", "served"] | None = None
    twins: Literal["ask", "ignore"] | None = Field(
        default=None, description="ask: a person decides where another person's id is written nearly so"
    )
    leave_out_forgotten: StrictBool = Field(
        default=False,
        description="leave out people who asked to be forgotten before this registration; false: it is refused",
    )
    batch: Annotated[int, Field(strict=True, ge=0, le=31_536_000), WHOLE] | None = Field(
        default=None,
        description="the least time between updates, in seconds; a deadline comes first. null: a week where an "
        "update repeats training that takes over a minute, else 0",
    )
    retrain_every: Annotated[int, Field(strict=True, ge=0, le=31_536_000), WHOLE] | None = Field(
        default=None, description="how often to train again on the recipe's present data; 0: when a caller asks"
    )
    place: PlaceName | None = Field(
        default=None, description="which workers take the model: any, cpu, cuda, or a group of EXPUNGE_PLACES"
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
        view = model_view(session, model)
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
    with service.database.read() as session:
        found = model_page(session, caller.tenant_id, cursor, limit)
    return Page(data=found[:limit], **after_page(request, response, found, limit, lambda each: each.name))


@router.get(_PATH + "/{name}", response_model=ModelView, responses=reading(404), summary="Show a model")
def show(
    name: ModelName, service: Running, caller: Reader, response: Response, if_none_match: IfNoneMatch = None
) -> ModelView:
    with service.database.read() as session:
        model = find_model(session, caller.tenant_id, name)
        view, preparation = model_view(session, model), preparation_view(session, model)
        generation, at = generation_of(session, model), now(session)
    plan = preparation.plan
    moves = view.status == "preparing" or plan is not None
    if moves:
        response.headers["Retry-After"] = str(retry_after([None if plan is None else plan.eta], at))
    with suppress(OSError):  # the rest of the model does not depend on the store
        preparation.report = Figures(service.store.folder).shown(generation)
    view.preparation = preparation
    return shown(view, response, None if moves else if_none_match)


@router.get(_PATH + "/{name}/budget", response_model=BudgetView, responses=problems(404), summary="Privacy budget")
def budget(name: ModelName, service: Running, caller: Reader) -> BudgetView:
    with service.database.read() as session:
        return budget_view(session, find_model(session, caller.tenant_id, name))
