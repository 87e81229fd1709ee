"""The device that a worker computes on: which it is, whether it still answers, the memory that torch keeps of it."""

from __future__ import annotations

from contextlib import suppress

import torch

from expunge_service.infra.settings import SettingsError
from expunge_workers.storage.manifest import card_of

NAMES = "Say auto, cpu, cuda or cuda:N."
WAYS = "Install a CUDA build of torch and the driver, or say EXPUNGE_DEVICE=cpu."


def device_of(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, or the CPU if there is none. Raises SettingsError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise SettingsError(f"EXPUNGE_DEVICE is {name!r}, which names no device. {NAMES}") from None


def opened(name: str) -> torch.device:
    """Return the device of that name, which computes. Raises SettingsError."""
    device = device_of(name)
    if not answers(device):
        raise SettingsError(f"EXPUNGE_DEVICE asks for {device}, which computes no float64 numbers here. {WAYS}")
    return device


def described(device: torch.device) -> str:
    """Return the device and the name of its card."""
    return " ".join((str(device), *(card_of(device).get("card", "").split())))


def answers(device: torch.device) -> bool:
    """Return whether the device computes float64 numbers, which every bound is counted in.

    After a failed assertion in one kernel, all that the process asks of the device fails.
    """
    try:
        number = torch.ones((), dtype=torch.float64, device=device)
        return float(number + 1) == 2.0  # reading a number waits for the device
    except torch.OutOfMemoryError:
        return True
    except (RuntimeError, TypeError, AssertionError):  # the last two: no float64 there, no such device in this torch
        return False


def give_back_memory(device: torch.device) -> None:
    """Give the device the memory back that torch keeps for later: other processes may need it."""
    if device.type != "cpu":
        with suppress(RuntimeError):  # one that is broken takes nothing back; ``answers`` tells that
            torch.accelerator.empty_cache()
