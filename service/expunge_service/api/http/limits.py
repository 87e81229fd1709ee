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
class Limiter:
    """``burst`` calls at once, ``per_second`` in the long run. The ``largest`` buckets that were used last are kept."""

    per_second: float
    burst: int
    largest: int = 100_000
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)
    """by key: the tokens in it, and when that was"""
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def wait_of(self, key_id: str, calls: int = 1) -> int:
        """Count the calls and return 0; or return the whole seconds to wait, without counting.

        Where they are more than are left, the next ones wait until all of them are made up for.
        """
        with self._guard:
            tokens, at = self._filled(key_id)
            if tokens < 1:
                return self._seconds(tokens)
            self._buckets[key_id] = tokens - calls, at
            return 0

    def give_back(self, key_id: str, calls: int) -> None:
        """Take back that so many calls were counted."""
        with self._guard:
            tokens, at = self._filled(key_id)
            self._buckets[key_id] = min(self.burst, tokens + calls), at

    def knows(self, key_id: str) -> bool:
        """Return whether the key has called lately."""
        with self._guard:
            return key_id in self._buckets

    def shut_for(self, key_id: str) -> int:
        """Return the whole seconds until a call would be counted, 0 for now, without counting."""
        with self._guard:
            if key_id not in self._buckets:
                return 0
            tokens, _ = self._filled(key_id)
            return 0 if tokens >= 1 else self._seconds(tokens)

    def _filled(self, key_id: str) -> tuple[float, float]:
        """Fill the bucket up to now. It becomes the one used last; the one unused for longest may go."""
        at = self.clock()
        tokens, before = self._buckets.pop(key_id, (self.burst, at))
        bucket = self._buckets[key_id] = min(self.burst, tokens + (at - before) * self.per_second), at
        if len(self._buckets) > self.largest:
            del self._buckets[next(iter(self._buckets))]
        return bucket

    def _seconds(self, tokens: float) -> int:
        return math.ceil((1 - tokens) / self.per_second)

    def headers(self, key_id: str) -> dict[str, str]:
        """Return the headers that show what is left of the quota (draft-ietf-httpapi-ratelimit-headers)."""
        with self._guard:
            left, _ = self._buckets[key_id]
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
    """Return the name under which an address's wrong keys are counted: the IPv4 address, or the /64 of an IPv6
    address.
    """
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))


class Quotas:
    """The layer that adds the caller's remaining quota to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(scope.get("state", {}).get("quota", {}))
            await send(message)

        await self._app(scope, receive, told)
