"""The noise of a release: Gaussian, from the operating system's cryptographic generator, never reproducible."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 20


def gaussian(count: int) -> Tensor:
    """``count`` independent standard normal numbers, float64, on the CPU.

    Box and Muller's transform of uniform numbers whose 53 bits come from ``os.urandom``. There is no seed: nothing
    can draw these numbers again. The largest possible value is sqrt(2 ln 2^53) = 8.57.
    """
    out = np.empty(count)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        out[start:stop] = _box_muller(stop - start)
    return torch.from_numpy(out)


def perturbed(weights: Tensor, sigma: float) -> Tensor:
    """``weights`` (d,) plus fresh noise of standard deviation ``sigma``, in float64 on the CPU."""
    return weights.detach().cpu().double() + sigma * gaussian(weights.numel())


def _box_muller(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    half = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64) >> np.uint64(11)
    radius = np.sqrt(-2.0 * np.log((bits[:half].astype(np.float64) + 1.0) * 2.0**-53))
    angle = 2.0 * np.pi * (bits[half:].astype(np.float64) * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
