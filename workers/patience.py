"""Trying a transaction again where the database was busy: the work before it is too dear to throw away."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.db import Busy

TRIES = 5
PAUSE_SECONDS = 0.5


def patiently(transaction: Callable[[], None]) -> None:
    """Run ``transaction``, again after Busy, a few times. It must do nothing where it took effect already.

    Raises Busy after the last try.
    """
    for _ in range(TRIES - 1):
        try:
            transaction()
            return
        except Busy:
            time.sleep(PAUSE_SECONDS)
    transaction()
