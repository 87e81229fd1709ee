"""W3C trace context: the ``traceparent`` of a call is stored with the deletion request that it makes.

The worker's log lines about that request name it, so that one trace leads from the client's call to the update.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

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
        if scope["type"] == "http":
            sent = Headers(scope=scope).get("traceparent", "")
            _CARRIED.set(sent if _SHAPE.fullmatch(sent) else None)
        await self._app(scope, receive, send)
