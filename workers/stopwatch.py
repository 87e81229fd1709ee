"""How long each phase of a release took, and which phase runs now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from workers.pulse import Pulse


class Stopwatch:
    """``seconds`` maps a phase to its wall-clock seconds; the pulse is told the phase that runs."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._pulse.phase(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
