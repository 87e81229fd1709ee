"""A limit of time on any work, in the middle of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from expunge_lab.advice.measure import OutOfTime
from unlearning.types import Progress


@contextmanager
def alarmed(seconds: float) -> Iterator[Progress]:
    """Raise OutOfTime in the block after so many seconds, in the middle of any work. For the main thread alone."""

    def ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (the signature of a signal's handler)
        raise OutOfTime

    def pass_by(share: float) -> None:  # noqa: ARG001  (the alarm looks at the clock)
        return

    start = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    left, every = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield pass_by
    finally:
        rest = max(left - (time.monotonic() - start), 1e-3) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, rest, every)
        signal.signal(signal.SIGALRM, before)
