"""How often a key may call: a token bucket for each key, in this process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class _Bucket:
    tokens: float
    at: float


@dataclass
class Limiter:
    """``burst`` calls at once, ``per_second`` in the long run. Only known keys have buckets, so there are few."""

    per_second: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def wait_of(self, key_id: str) -> int:
        """0, and the call is counted; else the whole seconds after which the key may call again."""
        with self._guard:
            at = self.clock()
            bucket = self._buckets.setdefault(key_id, _Bucket(self.burst, at))
            bucket.tokens = min(self.burst, bucket.tokens + (at - bucket.at) * self.per_second)
            bucket.at = at
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0
            return math.ceil((1 - bucket.tokens) / self.per_second)

    def headers(self, key_id: str) -> dict[str, str]:
        """What is left of the key's quota: draft-ietf-httpapi-ratelimit-headers."""
        with self._guard:
            left = self._buckets[key_id].tokens
        full, window = math.ceil((self.burst - left) / self.per_second), math.ceil(self.burst / self.per_second)
        return {
            "RateLimit-Policy": f'"key";q={self.burst};w={window}',
            "RateLimit": f'"key";r={int(left)};t={full}',
        }


class Quotas:
    """Tells every caller what is left of their key's quota, in whatever answer they get."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(scope.get("state", {}).get("quota", {}))
            await send(message)

        await self._app(scope, receive, told)
