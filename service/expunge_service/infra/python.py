"""How a process of Expunge starts another one, and keeps what it has imported."""

from __future__ import annotations

import gc
import sys

PYTHON = (sys.executable, "-P")
"""never looks for modules in the current folder: a user's own ``celery.py`` or ``service/`` there shadows none"""


def keep_imported() -> None:
    """Let no later collection of garbage visit what is imported by now.

    It stays anyway, and torch alone makes every visit long. A visit also writes to each object's header, so a page that
    a fork shares would be copied for it.
    """
    gc.collect()
    gc.freeze()
