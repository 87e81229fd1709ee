"""Memory that is free, asked for before anything large is made."""

from __future__ import annotations

from pathlib import Path

import torch

from unlearning.types import Refused

MEMORY = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""what a container may take and what it takes, of version 2 and of version 1"""
KIBIBYTE = 1024


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that this process can still take on a device: CUDA's free memory, or the machine's and its
    cgroup's. None where it is not known.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [size for size in (_of_the_machine(), _of_the_cgroup()) if size is not None]
    return min(known) if device.type == "cpu" and known else None


def require_room(what: str, size: int, device: torch.device, hint: str) -> None:
    """Raise Refused where ``size`` bytes do not fit on the device, or in the host's memory, where states are read.

    The message names ``what`` and both figures, and ``hint`` says what works.
    """
    for place in dict.fromkeys((device, torch.device("cpu"))):
        free = available_bytes(place)
        if free is not None and size > free:
            raise Refused(f"{what} take {size:,} bytes, and {max(0, free):,} are free on {place}.", hint)


def _of_the_machine() -> int | None:
    if not MEMORY.exists():
        return None
    lines = (line.split() for line in MEMORY.read_text().splitlines())
    return next((int(line[1]) * KIBIBYTE for line in lines if line[0] == "MemAvailable:"), None)


def _of_the_cgroup() -> int | None:
    """Return what is left of the limit of a container; None where there is no limit."""
    for most, now in ((CGROUP / limit, CGROUP / usage) for limit, usage in _FILES):
        if most.exists() and now.exists() and most.read_text().strip() != "max":
            return int(most.read_text()) - int(now.read_text())
    return None
