"""The collector of reference cycles rests while rows are made by the thousand.

Each of its full rounds looks through everything that is alive, and a large update sets off many of them
(``python -m benchmarks collector`` measures what they cost).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Cycles that arise meanwhile are collected afterwards."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
