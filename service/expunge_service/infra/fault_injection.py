"""Named crash points: a test build kills itself there with SIGKILL, so that tests see what a crash leaves behind."""

from __future__ import annotations

import os
import signal


def armed(name: str) -> bool:
    """Return whether this process must die at ``name``: in a test build, where the environment asks for it."""
    return os.environ.get("EXPUNGE_TEST_BUILD") == "1" and os.environ.get("EXPUNGE_CRASH_AT") == name


def crash_point(name: str) -> None:
    """Kill the process here, without any clean-up, where the environment asks for it."""
    if armed(name):
        os.kill(os.getpid(), signal.SIGKILL)
