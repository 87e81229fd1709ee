"""Named crash points: a test build kills itself there with SIGKILL, so that tests see what a death leaves behind."""

from __future__ import annotations

import os
import signal


def armed(name: str) -> bool:
    """Whether this process must die at ``name``: only in a test build, and only where the environment says so."""
    return os.environ.get("EXPUNGE_TEST_BUILD") == "1" and os.environ.get("EXPUNGE_CRASH_AT") == name


def crash_point(name: str) -> None:
    """Die here, without any clean-up, where the environment asks for it."""
    if armed(name):
        os.kill(os.getpid(), signal.SIGKILL)
