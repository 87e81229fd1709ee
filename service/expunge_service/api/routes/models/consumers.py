"""Consumers of a model and the versions that they serve."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, problems, require_scope
from expunge_service.api.http.pagination import Listed
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import LARGEST_NUMBER, WHOLE, ModelName
from expunge_service.api.views.consumers import ConsumerRow, consumer_rows, find_consumer
from expunge_service.api.views.models import find_model
from expunge_service.api.views.versions import find_version
from expunge_service.models import remove_consumer, report_consumer

router = APIRouter(tags=["consumers"])
Admin = Annotated[Caller, Depends(require_scope(Scope.MODELS_ADMIN))]
Downloader = Annotated[Caller, Depends(require_scope(Scope.CHECKPOINTS_READ))]
Reader = Annotated[Caller, Depends(require_scope(Scope.MODELS_READ))]
_PATH = "/v1/models/{name}/consumers"


class ConsumerReport(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"version": 2}]})

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
        try:
            version = find_version(session, model, str(body.version))
        except ApiProblem:
            errors = [{"pointer": "/version", "detail": "The model has no such version."}]
            raise ApiProblem(422, "unknown_version", "The model has no such version.", errors) from None
        report_consumer(session, model, consumer_id, version, caller.actor_id)
        session.flush()
        (found,) = (each for each in consumer_rows(session, models=[model.id]) if each.name == consumer_id)
    return _view(found)


@router.delete(
    _PATH + "/{consumer_id}", status_code=204, responses=problems(404), summary="A consumer serves the model no more"
)
def remove(name: ModelName, consumer_id: ModelName, service: Running, caller: Admin) -> None:
    with service.database.write() as session:
        model = find_model(session, caller.tenant_id, name)
        remove_consumer(session, model, find_consumer(session, model, consumer_id))


@router.get(
    _PATH, response_model=Listed[ConsumerView], responses=problems(404), summary="List consumers and their versions"
)
def index(name: ModelName, service: Running, caller: Reader) -> Listed[ConsumerView]:
    with service.database.read() as session:
        found = consumer_rows(session, models=[find_model(session, caller.tenant_id, name).id])
    return Listed(data=[_view(each) for each in found])


def _view(row: ConsumerRow) -> ConsumerView:
    return ConsumerView(name=row.name, version=row.version, status=row.status)
