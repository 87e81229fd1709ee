"""The module of the pretend device, ``torch.pretend``; it lies with the library on the path of a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch


def open_library() -> None:
    """Load the device; torch calls this when it is imported."""
    torch.ops.load_library(Path(__file__).with_name("pretend.so"))
    torch.utils.rename_privateuse1_backend("pretend")
    torch._register_device_module("pretend", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return bool(torch.ops.pretend.opened())


def _is_in_bad_fork() -> bool:
    return bool(torch.ops.pretend.forked())


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def get_device_name(device: Any = None) -> str:
    return "Pretend 1"


def manual_seed_all(seed: int) -> None:
    torch.ops.pretend.seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    state: torch.Tensor = torch.ops.pretend.rng_state()
    return state


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.ops.pretend.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16]


def synchronize(device: Any = None) -> None:
    torch.zeros(1, device="pretend")
