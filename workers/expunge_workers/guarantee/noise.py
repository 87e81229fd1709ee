"""The noise of an update: Gaussian, from a cryptographic generator, never reproducible."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

BLOCK = 1 << 18


def perturbed(
    weights: Tensor, noise_std: float, dtype: torch.dtype = torch.float64, *, trained: int | None = None
) -> Tensor:
    """Add fresh Gaussian noise of standard deviation ``noise_std`` to ``weights`` (d,), on the CPU.

    ``trained``: the first so many numbers get noise, the others are returned as they are; None: all get it.

    Box and Muller's transform of uniform numbers of 53 bits. The bits are the keystream of AES-256 in counter mode
    under a key that the operating system's entropy gives for this call and that is not kept: no program can draw
    these numbers again. The largest possible value is sqrt(2 ln 2^53) = 8.57 standard deviations. Drawn and added in
    float64, rounded to ``dtype`` afterwards; a block at a time, so that no float64 copy is held.
    """
    plain = weights.detach().cpu()
    out = plain.to(dtype, copy=True)
    for start, part in _blocks(plain.numel() if trained is None else trained):
        stop = start + len(part)
        out[start:stop] = part.mul_(noise_std).add_(plain[start:stop])
    return out


def _blocks(count: int) -> Iterator[tuple[int, Tensor]]:
    """Return where each block of the draw begins, and its numbers; the next block overwrites them."""
    keystream = Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor()
    zeros = bytes(16 * ((min(BLOCK, count) + 1) // 2))
    room = torch.empty(min(BLOCK, count), dtype=torch.float64)
    for start in range(0, count, BLOCK):
        part = room[: min(BLOCK, count - start)]
        half = (len(part) + 1) // 2
        bits = torch.frombuffer(bytearray(keystream.update(zeros[: 16 * half])), dtype=torch.int64)
        _box_muller(bits, part)
        yield start, part


def _box_muller(bits: Tensor, out: Tensor) -> None:
    """Fill ``out`` from two uniform 64-bit integers for each pair of its numbers."""
    half = len(bits) // 2
    # the upper 53 bits of an unsigned number: torch's shift keeps the sign, the mask takes it off again
    uniform = bits.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).double()
    radius = uniform[:half].add_(1.0).mul_(2.0**-53).log_().mul_(-2.0).sqrt_()
    angle = uniform[half:].mul_(2.0 * torch.pi * 2.0**-53)
    torch.mul(radius, angle.cos(), out=out[:half])
    rest = len(out) - half
    torch.mul(radius[:rest], angle[:rest].sin(), out=out[half:])
