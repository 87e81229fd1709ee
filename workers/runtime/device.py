"""The device that a worker computes on: which it is, whether it still answers, the memory that torch keeps of it."""

from __future__ import annotations

from contextlib import suppress

import torch


def device_of(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, or the CPU if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def answers(device: torch.device) -> bool:
    """Return whether the device still computes.

    After a failed assertion in one kernel, all that the process asks of the device fails.
    """
    try:
        return float(torch.ones((), device=device) + 1) == 2.0  # reading a number waits for the device
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False


def give_back_memory(device: torch.device) -> None:
    """Give the device the memory back that torch keeps for later: other processes may need it."""
    if device.type != "cpu":
        with suppress(RuntimeError):  # one that is broken takes nothing back; ``answers`` tells that
            torch.accelerator.empty_cache()
