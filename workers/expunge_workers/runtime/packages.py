"""The installed packages as this process found them when it started: one that is replaced later runs half old."""

from __future__ import annotations

import sys
from pathlib import Path

SUFFIX = ".dist-info"


def installed() -> dict[str, int]:
    """Return each package's name and version, such as ``pandas-2.2.0``, with the time it was written (ns)."""
    folders = [Path(place) for place in sys.path if place.endswith("-packages") and Path(place).is_dir()]
    return {
        entry.name.removesuffix(SUFFIX): entry.stat().st_mtime_ns
        for folder in reversed(folders)
        for entry in folder.glob(f"*{SUFFIX}")
    }


AT_START = installed()


def replaced() -> list[str]:
    """Return the packages, such as ``pandas 2.2.0``, that were removed, replaced or written again since the start."""
    now = installed()
    return [" ".join(name.rsplit("-", 1)) for name, written in sorted(AT_START.items()) if now.get(name) != written]
