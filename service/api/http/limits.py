"""How often a key may call, and a client try wrong keys: a token bucket for each, in this process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Network, ip_address

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class _Bucket:
    tokens: float
    at: float


@dataclass
class Limiter:
    """``burst`` calls at once, ``per_second`` in the long run. The ``largest`` buckets that were used last are kept."""

    per_second: float
    burst: int
    largest: int = 100_000
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def wait_of(self, key_id: str) -> int:
        """0, and the call is counted; else the whole seconds after which the key may call again."""
        with self._guard:
            bucket = self._filled(key_id)
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0
            return self._seconds(bucket)

    def knows(self, key_id: str) -> bool:
        """Return whether the key has called lately."""
        with self._guard:
            return key_id in self._buckets

    def shut_for(self, key_id: str) -> int:
        """0: a call would be counted; else the whole seconds until one would. Nothing is counted."""
        with self._guard:
            if key_id not in self._buckets:
                return 0
            bucket = self._filled(key_id)
            return 0 if bucket.tokens >= 1 else self._seconds(bucket)

    def _filled(self, key_id: str) -> _Bucket:
        """The bucket as it is now; it becomes the one used last, and the one unused for longest may go."""
        at = self.clock()
        bucket = self._buckets.pop(key_id, None) or _Bucket(self.burst, at)
        bucket.tokens = min(self.burst, bucket.tokens + (at - bucket.at) * self.per_second)
        bucket.at = at
        self._buckets[key_id] = bucket
        if len(self._buckets) > self.largest:
            del self._buckets[next(iter(self._buckets))]
        return bucket

    def _seconds(self, bucket: _Bucket) -> int:
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


WRONG_KEYS_AT_ONCE = 100
WRONG_KEYS_PER_SECOND = 1.0
ADDRESSES = 10_000


def wrong_keys() -> Limiter:
    """Make the limit of wrong keys for each client address; addresses beyond the last 10,000 are forgotten."""
    return Limiter(WRONG_KEYS_PER_SECOND, WRONG_KEYS_AT_ONCE, ADDRESSES)


def client_of(host: str | None) -> str:
    """Whose wrong keys are counted together: an IPv4 address, or the /64 that one customer is given in IPv6."""
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))


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
