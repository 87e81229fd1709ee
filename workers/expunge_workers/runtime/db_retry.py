"""Calling again what the database was too busy for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from expunge_service.infra.db import Busy

TRIES = 5
PAUSE_SECONDS = 0.5
Result = TypeVar("Result")

log = logging.getLogger(__name__)


def retry(action: Callable[[], Result], tries: int | None = TRIES, pause_seconds: float = PAUSE_SECONDS) -> Result:
    """Return what ``action`` returns. Call it again after Busy, ``tries`` times in all; None: until it succeeds.

    The action must have no effect where an earlier call took effect: a commit that was not answered may have succeeded.
    Each Busy is logged. Raises Busy after the last call.
    """
    calls = 1
    while True:
        try:
            return action()
        except Busy as error:
            if calls == tries:
                raise
            log.warning("Trying again in %g s: %s", pause_seconds, error)
        calls += 1
        time.sleep(pause_seconds)
