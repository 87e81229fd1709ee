"""Expunge's own packages, and where they lie: each in a house of its own in a clone, side by side once installed."""

from __future__ import annotations

from pathlib import Path

import expunge
import expunge_service
import expunge_workers
import unlearning

PACKAGES = (unlearning, expunge_service, expunge_workers, expunge)
FOLDERS = tuple(Path(str(package.__file__)).resolve().parent for package in PACKAGES)
MATHS, SERVICE, WORKERS = FOLDERS[:3]
EXAMPLES = "expunge.examples"
"""data of ``expunge``, and in a clone a folder beside it"""
NAMES = frozenset(folder.name for folder in FOLDERS)
IMPORTED_FROM = tuple(dict.fromkeys(str(folder.parent) for folder in FOLDERS))
"""what a process's path must list to import them"""
