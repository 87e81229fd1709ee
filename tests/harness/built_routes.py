"""One set of built routes for all applications of a test process, as a process of the service has one application.

Nearly every test makes an application, and FastAPI builds each route again, with the schemas of its parameters, when
the application is first asked. No route of ours depends on the application's settings.
"""

from __future__ import annotations

from fastapi.routing import APIRoute, _EffectiveRouteContext, _RouterIncludeContext

_BUILD = _EffectiveRouteContext.from_api_route
_FIRST: dict[tuple[int, str], _EffectiveRouteContext] = {}


def share_built_routes() -> None:
    """Give every application, from now on, the routes that the first one built."""
    _EffectiveRouteContext.from_api_route = _shared  # type: ignore[method-assign]


def _shared(*, original_route: APIRoute, include_context: _RouterIncludeContext) -> _EffectiveRouteContext:
    key = (id(original_route), include_context.path_for(original_route))  # what is kept keeps its route, and so the id
    if key not in _FIRST:
        _FIRST[key] = _BUILD(original_route=original_route, include_context=include_context)
    return _FIRST[key]
