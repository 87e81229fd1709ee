"""The API, without the page: it loads neither torch nor a recipe."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import Depends, FastAPI

import expunge
from expunge_service.access import check_pepper, check_places
from expunge_service.api import health, problems, webhook_events
from expunge_service.api.dependencies import Service, look_for_unread
from expunge_service.api.http.bodies import Bodies
from expunge_service.api.http.caches import NotKept
from expunge_service.api.http.limits import Limiter, Quotas
from expunge_service.api.http.peers import NamedPeople
from expunge_service.api.openapi import document, operation_id
from expunge_service.api.routes import actors, audit, events, keys, webhooks
from expunge_service.api.routes.models import consumers, lifecycle, models, retrains, versions
from expunge_service.api.routes.requests import batches, certificates, deletion_requests, holds, search, suppressions
from expunge_service.api.traffic import Measured
from expunge_service.infra.actors import Called
from expunge_service.infra.db import Busy, Database
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.logging import configure
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import API_SECRETS, Settings, ensure_secrets, session_key
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tracing import NO_TELEMETRY, Traced, export_spans


def create_api(settings: Settings | None = None, limits: Limits = LIMITS) -> FastAPI:
    """Make the application that answers the API's calls.

    Raises SettingsError where production lacks a secret, or a place is another installation's.
    """
    settings = settings or Settings()
    configure(settings.log_level)
    export_spans("api")
    ensure_secrets(settings, API_SECRETS)
    database, pepper = Database(settings.database_url, actor="api"), Pepper.load(settings.pepper_file)
    store = folder_at(settings.store)
    with suppress(Busy):  # under another pepper no API key is valid, so nothing is accepted
        check_pepper(database, pepper)
        check_places(database, {"store": store})
    service = Service(
        settings=settings,
        limits=limits,
        database=database,
        pepper=pepper,
        session_key=session_key(settings),
        limiter=Limiter(settings.rate, limits.rate_burst),
        searches=Limiter(limits.searches_per_minute / 60, limits.searches_per_minute),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.database.close()

    app = FastAPI(
        title="Expunge",
        version=expunge.__version__,
        lifespan=lifespan,
        webhooks=webhook_events.SCHEMAS,
        redoc_url=None,
        docs_url=None,
        generate_unique_id_function=operation_id,
        telemetry=NO_TELEMETRY,
        redirect_slashes=False,  # such a redirect leads to the host that the caller named
    )
    app.state.service = service
    problems.install(app)
    for room in (
        batches,
        deletion_requests,
        search,
        certificates,
        models,
        lifecycle,
        retrains,
        versions,
        consumers,
        holds,
        keys,
        actors,
        suppressions,
        audit,
        events,
        webhooks,
        health,
    ):
        app.include_router(room.router, dependencies=[Depends(look_for_unread)])
    app.add_middleware(Bodies, max_bytes=limits.body_bytes)
    app.add_middleware(Quotas)
    app.add_middleware(problems.Unexpected)
    app.add_middleware(NotKept)
    app.add_middleware(Traced)
    app.add_middleware(Called)
    app.add_middleware(Measured, traffic=service.traffic)
    app.add_middleware(NamedPeople, header=settings.actor_header, peers=settings.peers)
    app.openapi = lambda: document(app, limits.idempotency_seconds)  # type: ignore[method-assign]
    return app
