"""One set of built routes for all applications of a test process, as a process of the service has one application.

Nearly every test makes an application. FastAPI builds each route again, with the schemas of its parameters, when the
application is first asked; and the document of them, which the first refusal of an application looks into, takes half a
second. No route of ours depends on the application's settings.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, _EffectiveRouteContext, _RouterIncludeContext

import expunge_service.api.app

_BUILD = _EffectiveRouteContext.from_api_route
_DOCUMENT = expunge_service.api.app.document
_FIRST: dict[tuple[int, str], _EffectiveRouteContext] = {}
_DOCUMENTS: dict[tuple[object, ...], dict[str, Any]] = {}


def share_built_routes() -> None:
    """Give every application, from now on, the routes that the first one built, and their document."""
    _EffectiveRouteContext.from_api_route = _shared  # type: ignore[method-assign]
    expunge_service.api.app.document = _shared_document


def _shared(*, original_route: APIRoute, include_context: _RouterIncludeContext) -> _EffectiveRouteContext:
    key = (id(original_route), include_context.path_for(original_route))  # what is kept keeps its route, and so the id
    if key not in _FIRST:
        _FIRST[key] = _BUILD(original_route=original_route, include_context=include_context)
    return _FIRST[key]


def _shared_document(app: FastAPI, kept_seconds: float) -> dict[str, Any]:
    """Return the document of the first application that has these routes. A test may add its own route."""
    routes = (getattr(each, "path", None) or id(getattr(each, "original_router", each)) for each in app.routes)
    key = (kept_seconds, *routes)
    if key not in _DOCUMENTS:
        _DOCUMENTS[key] = _DOCUMENT(app, kept_seconds)
    return _DOCUMENTS[key]
