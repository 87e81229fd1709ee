"""How many threads the libraries of this process take; without torch, since every process reports it."""

from __future__ import annotations

import os


def own_threads() -> str:
    return os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count())
