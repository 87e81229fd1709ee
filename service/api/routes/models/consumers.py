"""Consumers of a model: who serves which version."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from expunge.service.access.api_keys import Caller, Scope
from expunge.service.api.dependencies import Running, holding, problems
from expunge.service.api.http.pagination import Listed
from expunge.service.api.problems import ApiProblem, not_found
from expunge.service.api.routes.models.models import find as find_model
from expunge.service.api.types import LARGEST_NUMBER, WHOLE, ModelName
from expunge.service.infra.tables import Consumer, Version
from expunge.service.models.consumers import leave, report, standing

router = APIRouter(tags=["consumers"])
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]
Downloader = Annotated[Caller, Depends(holding(Scope.CHECKPOINTS_READ))]
Reader = Annotated[Caller, Depends(holding(Scope.MODELS_READ))]
_PATH = "/v1/models/{name}/consumers"


class ConsumerReport(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Annotated[
        int, Field(strict=True, ge=1, le=LARGEST_NUMBER, description="the version that is served now"), WHOLE
    ]


class ConsumerView(BaseModel):
    name: str
    version: int
    status: str = Field(description="current, behind, or unknown after five minutes without a report")


@router.put(
    _PATH + "/{consumer_id}",
    response_model=ConsumerView,
    responses=problems(404, 409),
    summary="Report what you serve",
)
def put(
    name: ModelName, consumer_id: ModelName, body: ConsumerReport, service: Running, caller: Downloader
) -> ConsumerView:
    with service.database.write() as session:
        model = find_model(session, caller.tenant_id, name)
        served = select(Version).where(Version.model_id == model.id, Version.number == body.version)
        version = session.scalar(served)
        head = session.get(Version, model.current_id) if model.current_id else None
        if version is None or head is None:
            errors = [{"pointer": "/version", "detail": "The model has no such version."}]
            raise ApiProblem(422, "unknown_version", "The model has no such version.", errors)
        report(session, model, consumer_id, version, caller.actor_id)
        session.flush()
        found = next(each for each in standing(session, model, head) if each["name"] == consumer_id)
    return ConsumerView(**found)


@router.delete(
    _PATH + "/{consumer_id}", status_code=204, responses=problems(404), summary="A consumer serves the model no more"
)
def remove(name: ModelName, consumer_id: ModelName, service: Running, caller: Admin) -> None:
    with service.database.write() as session:
        model = find_model(session, caller.tenant_id, name)
        row = session.get(Consumer, (model.id, consumer_id))
        if row is None:
            raise not_found("consumer")
        leave(session, model, row)


@router.get(_PATH, response_model=Listed[ConsumerView], responses=problems(404), summary="Who serves which version")
def index(name: ModelName, service: Running, caller: Reader) -> Listed[ConsumerView]:
    with service.database.read() as session:
        model = find_model(session, caller.tenant_id, name)
        head = session.get(Version, model.current_id) if model.current_id else None
        found = standing(session, model, head) if head else []
    return Listed(data=[ConsumerView(**each) for each in found])
