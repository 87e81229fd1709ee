"""How often a key may call: a token bucket for each key, in this process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


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
