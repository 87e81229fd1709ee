"""The status page, above the API: server-rendered, readable without JavaScript, live with it.

It calls the API's routes as functions, reads by ``api.views``, and knows no table.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI

from expunge_service.api.dependencies import look_for_unread
from expunge_service.console import acts, pages, runbooks, verify
from expunge_service.console.pages import missing


def mount(app: FastAPI) -> None:
    """Add the console to an API. It answers every address that the API does not know."""
    missing.install(app)
    for room in (runbooks, verify):
        app.include_router(room.router, dependencies=[Depends(look_for_unread)])
    for router in (acts.router, *pages.ROUTERS):
        app.include_router(router)
