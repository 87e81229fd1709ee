"""Retrains on the recipe's present data, and ports to a recipe with rows: planning one, or a dry run of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, problems, require_scope
from expunge_service.api.openapi import answer
from expunge_service.api.types import ModelName
from expunge_service.api.views.models import RetrainView, locked_model, retrain_view
from expunge_service.infra.tenants import recipes_of
from expunge_service.models import plan_new_data, plan_port

router = APIRouter(tags=["models"])
Admin = Annotated[Caller, Depends(require_scope(Scope.MODELS_ADMIN))]
Reader = Annotated[Caller, Depends(require_scope(Scope.MODELS_READ))]
_PATH = "/v1/models/{name}/retrains"
_PORT = "/v1/models/{name}/port"


class RetrainOrder(BaseModel):
    """A new generation of the model, trained on what its recipe gives now, without anyone who asked to be forgotten."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"dry_run": True}]})

    dry_run: StrictBool = Field(default=False, description="only count what changed in the data, without training")


class PortOrder(BaseModel):
    """A new generation of the model by its recipe with rows, without anyone who asked to be forgotten."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"dry_run": True}]})

    dry_run: StrictBool = Field(default=False, description="only count the people in the sources, without training")


@router.post(
    _PATH,
    status_code=202,
    response_model=RetrainView,
    responses=problems(404, 409) | answer(202, "Location", "Retry-After"),
    summary="Train a model again on its recipe's present data",
)
def retrain(name: ModelName, body: RetrainOrder, service: Running, caller: Admin, response: Response) -> RetrainView:
    with service.database.write() as session:
        model = locked_model(session, caller.tenant_id, name)
        view = retrain_view(plan_new_data(session, model, dry_run=body.dry_run))
    service.notify([model.id])
    response.headers["Location"] = f"/v1/models/{name}"
    response.headers["Retry-After"] = "2"
    return view


@router.post(
    _PORT,
    status_code=202,
    response_model=RetrainView,
    responses=problems(404, 409) | answer(202, "Location", "Retry-After"),
    summary="Train a model by its recipe's rows, once the recipe was rewritten",
)
def port(name: ModelName, body: PortOrder, service: Running, caller: Admin, response: Response) -> RetrainView:
    """Plan the port. The current version is served until the new one is ready; deletions that wait end with it."""
    recipes = recipes_of(service.settings.recipes, caller.tenant_id)
    with service.database.write() as session:
        model = locked_model(session, caller.tenant_id, name)
        view = retrain_view(plan_port(session, model, recipes, dry_run=body.dry_run))
    service.notify([model.id])
    response.headers["Location"] = f"/v1/models/{name}"
    response.headers["Retry-After"] = "2"
    return view
