"""Actors: the holders of keys. The audit log names them by id; their names are here, and can be erased."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from expunge_service.access import Caller, Scope, find_actor, list_actors, name_actor
from expunge_service.api.dependencies import Running, problems, require_scope
from expunge_service.api.http.pagination import Listed
from expunge_service.api.problems import not_found
from expunge_service.api.types import RequestId
from expunge_service.api.views.keys import ActorView, actor_view

router = APIRouter(tags=["actors"])
Admin = Annotated[Caller, Depends(require_scope(Scope.KEYS_ADMIN))]
ActorsName = Annotated[str, StringConstraints(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]


class ActorOrder(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "privacy desk"}]})

    name: ActorsName | None = Field(description="null: erase the name, and the labels of the actor's keys")


@router.get("/v1/actors", response_model=Listed[ActorView], responses=problems(), summary="List the holders of keys")
def index(service: Running, caller: Admin) -> Listed[ActorView]:
    with service.database.read() as session:
        return Listed(data=[actor_view(actor) for actor in list_actors(session, caller.tenant_id)])


@router.put(
    "/v1/actors/{actor_id}", response_model=ActorView, responses=problems(404), summary="Name an actor, or erase a name"
)
def rename(actor_id: RequestId, body: ActorOrder, service: Running, caller: Admin) -> ActorView:
    with service.database.write() as session:
        actor = find_actor(session, caller.tenant_id, actor_id)
        if actor is None:
            raise not_found("actor")
        name_actor(session, actor, body.name)
        return actor_view(actor)
