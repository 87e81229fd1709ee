"""Who holds a key, remembered for a while, for callers whose own transaction asks whether the key still stands.

A key's tenant, id and scopes never change; that it was revoked or has expired is not remembered here and must be
read again. What is kept is the key's digest under the pepper, not the key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.access.api_keys import Caller

SECONDS = 60.0
LARGEST = 10_000


@dataclass
class Keyring:
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, Caller]] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def holder(self, digest: str) -> Caller | None:
        """Whose key has this digest; None where that is not remembered."""
        found = self._known.get(digest)
        return found[1] if found is not None and found[0] > self.clock() else None

    def remember(self, digest: str, caller: Caller) -> None:
        with self._guard:
            if len(self._known) >= LARGEST:
                self._known.clear()
            self._known[digest] = (self.clock() + SECONDS, caller)
