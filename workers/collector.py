"""The collector of reference cycles rests while rows are made by the thousand: they are part of none.

Each of its full rounds looks through everything that is alive, and a large release sets off many of them: a fifth of
its CPU, more a request the larger it is (measured by ``python -m benchmarks release``).
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
