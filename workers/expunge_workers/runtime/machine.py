"""What a process computes on: the class of its device, its name and its memory. A CPU is described without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))
"""one of them is there where a GPU can be used"""
CGROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""of version 2 and of version 1"""


@dataclass(frozen=True)
class Machine:
    kind: str
    """the class of the device: cpu or cuda"""
    card: str | None = None
    memory: int | None = None
    """bytes in all; None: it is not known"""


def machine_of(name: str) -> Machine:
    """Describe the device that EXPUNGE_DEVICE names.

    torch is loaded only where that may be a GPU, because it takes seconds.
    """
    if name == "cpu" or (name == "auto" and not any(driver.exists() for driver in DRIVERS)):
        return Machine("cpu", None, host_bytes())
    import torch  # noqa: PLC0415

    from expunge_workers.runtime.device import device_of  # noqa: PLC0415

    device = device_of(name)
    if device.type != "cuda":
        return Machine(device.type, None, host_bytes() if device.type == "cpu" else None)
    if not torch.cuda.is_available():
        return Machine("cuda")
    known = torch.cuda.get_device_properties(device)
    return Machine("cuda", known.name, known.total_memory)


def host_bytes() -> int:
    """Return the memory that this process may use: the machine's, or its container's limit."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [(CGROUP / name).read_text().strip() for name in _LIMITS if (CGROUP / name).exists()]
    return min([own, *(int(limit) for limit in limits if limit != "max")])
