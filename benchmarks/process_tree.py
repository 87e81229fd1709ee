"""What processes use together with all that they started: CPU seconds and memory, read from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError)
"""the process ended while it was read"""


def family(roots: Iterable[int]) -> list[int]:
    """Return the process ids of the roots and of all that descend from them."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(*GONE):
            children.setdefault(int(_fields(int(folder.name))[1]), []).append(int(folder.name))
    members = [*roots]
    for member in members:
        members += children.get(member, [])
    return members


def cpu_seconds(*roots: int) -> float:
    """Return user and system time of the family, with that of the children which ended and were waited for."""
    ticks = 0
    for member in family(roots):
        with suppress(*GONE):
            ticks += sum(map(int, _fields(member)[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_of_each(*roots: int) -> dict[int, int]:
    """Return the bytes of each process of the family; a page that k processes share counts as a k-th to each (PSS).

    k counts every process of the machine, so what is to be compared must not run at the same time.
    """
    found = {}
    for member in family(roots):
        with suppress(*GONE):
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            found[member] = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found


def _fields(process: int) -> list[str]:
    """Return the fields of ``stat`` from the third on: state, parent, and so on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
