"""W3C trace context: the ``traceparent`` of a call is stored with the deletion request that it makes.

The worker's log lines about that request name it, so that one trace leads from the client's call to the update. With
OpenTelemetry (``service.infra.spans``) it is the traceparent of the call's own span, a child of the client's.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.infra.spans import Call, called

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SHAPE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_CARRIED: ContextVar[str | None] = ContextVar("traceparent", default=None)


def carried() -> str | None:
    """Return the traceparent of the call that is being answered; None: it has none, or a malformed one."""
    return _CARRIED.get()


class Traced:
    """ASGI middleware that reads the header and ignores a malformed one, as the specification asks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("traceparent", "")
        parent = sent if _SHAPE.fullmatch(sent) else None
        with called(scope["method"] if scope["method"] in METHODS else "other", parent) as call:
            _CARRIED.set(parent if call is None else call.traceparent or parent)
            await self._app(scope, receive, send if call is None else _noting(call, scope, send))


def _noting(call: Call, scope: Scope, send: Send) -> Send:
    """Return ``send``, which also notes in the call's span how it is answered."""

    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            call.answered(scope.get("route"), message["status"])
        await send(message)

    return noted
