"""How a process of Expunge starts another one."""

from __future__ import annotations

import sys

PYTHON = (sys.executable, "-P")
"""never looks for modules in the current folder: a user's own ``celery.py`` or ``service/`` there shadows none"""
