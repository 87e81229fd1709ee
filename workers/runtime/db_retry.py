"""Trying again where the database was busy: the work before it is too dear to throw away, or the process is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from service.infra.db import Busy

TRIES = 5
PAUSE_SECONDS = 0.5
Opened = TypeVar("Opened")

log = logging.getLogger(__name__)


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


def once_there(opening: Callable[[], Opened], pause_seconds: float = PAUSE_SECONDS) -> Opened:
    """What ``opening`` returns once the database answers, however long it is away: nobody may be there to start a
    process again that gave up. Each Busy is logged.
    """
    while True:
        try:
            return opening()
        except Busy as error:
            log.warning("waiting to begin: %s", error)
        time.sleep(pause_seconds)
