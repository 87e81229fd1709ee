"""How long each phase of an update took, and which phase runs now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from expunge.service.infra.time import bucket
from expunge.workers.runtime.heartbeat import HeartbeatSender

UNLEARN = "unlearn"
"""the phase that forgets, refines and certifies"""


class Stopwatch:
    """Times the phases of an update and reports the running one. ``seconds``: wall-clock seconds by phase."""

    def __init__(self, pulse: HeartbeatSender) -> None:
        self._pulse = pulse
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase. The times of one that comes several times are added."""
        self._pulse.phase(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @contextmanager
    def unlearning(self) -> Iterator[None]:
        """Time the block that forgets, refines and certifies as one phase, and wait until its time bucket ends.

        Their time shows how many iterations they needed, which depends on the people who are forgotten. An observer
        of the clock, the log or the metrics sees only the bucket, whether the update succeeds or not.
        """
        start = time.perf_counter()
        try:
            with self.phase(UNLEARN):
                yield
        finally:
            took = time.perf_counter() - start
            sleep(max(0.0, bucket(took) - took))
            self.seconds[UNLEARN] += bucket(took) - took
