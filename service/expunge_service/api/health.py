"""Is the process alive, is the service ready, and its metrics. No key is needed: no personal data is shown."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from expunge_service.access import check_places
from expunge_service.api.dependencies import Running, Service, problems, require_agreed
from expunge_service.api.problems import ApiProblem
from expunge_service.api.views.metrics import render
from expunge_service.api.views.processes import processes
from expunge_service.infra.db import Busy
from expunge_service.infra.migrate import RUN_MIGRATE, SchemaState, schema_state
from expunge_service.infra.settings import SettingsError
from expunge_service.models import restore_waits

router = APIRouter(tags=["health"])
_METRICS = "text/plain; version=1.0.0; charset=utf-8"


class ReadyView(BaseModel):
    status: Literal["ready"] = "ready"
    workers: int


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="The process answers")
def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get(
    "/readyz",
    responses={status: problems()[status] for status in (422, 503)},
    summary="The schema is current and a worker is alive that the broker lets in",
)
def readyz(
    service: Running,
    workers: Annotated[
        int, Query(ge=0, le=1, description="how many must be alive; with 0 it tells of this API process alone")
    ] = 1,
) -> ReadyView:
    try:
        state = schema_state(service.database)
    except Busy:
        raise _not_ready("The database does not answer.") from None
    if state is SchemaState.BEHIND:
        raise _not_ready(RUN_MIGRATE)
    if state is SchemaState.AHEAD:
        raise _not_ready("The schema is ahead of this release: start the newer release.")
    with service.database.read() as session:
        if restore_waits(session):
            raise _not_ready("A restored backup waits for `expunge restore --confirm`; until then only reading works.")
    _require_store(service)
    with service.database.read() as session:
        beats = processes(session, service.limits.lease_seconds)
    alive = [each for each in beats if each.alive and each.row.kind == "worker"]
    if len(alive) < workers:
        raise _not_ready("No worker is alive: start one with `expunge run worker`.")
    if workers and all(each.is_refused for each in alive):
        raise _not_ready(
            "No worker can log in to the broker, which refuses the user or password of EXPUNGE_BROKER_URL. Set it for "
            "the workers. In Compose write secrets/redis.acl again, as docker-compose.yml says, and restart redis."
        )
    return ReadyView(workers=len(alive))


@router.get("/metrics", response_class=Response, summary="Prometheus metrics")
def metrics(service: Running) -> Response:
    differs = service.watch.verdict().difference is not None
    return Response(render(service.database, service.settings, service.traffic, differs=differs), media_type=_METRICS)


def _require_store(service: Service) -> None:
    """Raise ApiProblem (503) unless the store answers, is this installation's, and agrees with the database."""
    verdict = require_agreed(service)
    if verdict.silent == "database":
        raise _not_ready("The database does not answer.")
    try:
        if verdict.silent:
            raise Busy
        check_places(service.database, {"store": service.store.folder})
    except SettingsError as error:
        raise _not_ready(str(error)) from None
    except Busy:
        raise _not_ready("The store does not answer: look at EXPUNGE_STORE, and at the server of its bucket.") from None


def _not_ready(detail: str) -> ApiProblem:
    return ApiProblem(503, "not_ready", detail, headers={"Retry-After": "2"})
