"""What a recipe's code reads and changes of its whole process: torch's random states and settings.

A worker serves many models. A default dtype, a number of threads or flushed denormal numbers that one recipe sets would
change the weights of another, and the rounding that ``proved`` counts with. So both are put back after it has run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

DENORMAL = 5e-324
"""the smallest positive float64: 0 where denormal numbers are flushed"""
OF_A_CARD = (
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_accumulation"),
)
"""how a card rounds and which algorithm it takes; torch holds these without a card too"""


@contextmanager
def torch_draws_from(seed: int) -> Iterator[None]:
    """Set the random states of torch by ``seed``, on every card too, and put them back."""
    with torch.random.fork_rng(range(torch.accelerator.device_count()) if cards_are_open() else ()):
        torch.manual_seed(seed)
        yield


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put torch's settings back as they were, also where the block raises."""
    dtype, device, threads = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    precision, flushed, anomalies = (
        torch.get_float32_matmul_precision(),
        _flushes_denormal(),
        torch.is_anomaly_enabled(),
    )
    deterministic, of_a_card = torch.get_deterministic_debug_mode(), list(_of_a_card())
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        if torch.get_default_device() != device:
            torch.set_default_device(None)  # the service sets none itself
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        # its other name, use_deterministic_algorithms, loads torch's whole compiler: a second, 70 MB
        torch.set_deterministic_debug_mode(deterministic)
        for owner, name, value in of_a_card:
            setattr(owner, name, value)
        torch.autograd.set_detect_anomaly(anomalies)
        torch.set_flush_denormal(flushed)


def cards_are_open() -> bool:
    """Return whether this process computed on a card already. To ask a card for its state would open it."""
    kind = torch.accelerator.current_accelerator()
    return kind is not None and bool(getattr(torch.get_device_module(kind), "is_initialized", lambda: True)())


def _of_a_card() -> Iterator[tuple[object, str, object]]:
    for owner, name in OF_A_CARD:
        with suppress(RuntimeError):  # torch cannot tell it where the block around this one used both of its interfaces
            yield owner, name, getattr(owner, name)


def _flushes_denormal() -> bool:
    """Return whether this thread takes denormal numbers for 0. Torch tells it by its arithmetic alone."""
    return float(torch.tensor(DENORMAL, dtype=torch.float64, device="cpu") * 1.0) == 0.0
