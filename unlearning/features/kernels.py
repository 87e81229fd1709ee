"""Random convolution kernels for series, after Dempster, Petitjean and Webb, "ROCKET", 2020."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unlearning.types import RecipeError

LENGTHS = (7, 9, 11)


class RandomKernels(nn.Module):
    """For each of ``kernels`` random dilated convolutions: the largest value, and the share of positive values.

    Args:
        length: steps in a series, at least 11.
        kernels: how many kernels; the output has twice as many numbers.
        channels: series of one sample.
        seed: fixes every kernel's size, weights (centred normal), bias (uniform on [-1, 1]) and dilation.

    Each series is first normalised to mean 0 and standard deviation 1 by itself (a constant series gives zeros).
    ``forward`` takes (n, length) or (n, channels, length), float32 or float64, and returns (n, 2 kernels) in the same
    dtype, divided by sqrt(2 kernels).

    Raises:
        ValueError: a series that is too short, or a count below 1.
    """

    def __init__(self, length: int, kernels: int = 500, channels: int = 1, seed: int = 0) -> None:
        super().__init__()
        if length < max(LENGTHS) or kernels < 1 or channels < 1:
            raise RecipeError(
                f"A series has length={length}, kernels={kernels}, channels={channels}.",
                f"Give at least {max(LENGTHS)} steps, one kernel and one channel.",
            )
        self.length, self.kernels, self.channels, self.seed = length, kernels, channels, seed

    def forward(self, series: Tensor) -> Tensor:
        plain = series.reshape(len(series), self.channels, self.length)
        centred = plain - plain.mean(dim=2, keepdim=True)
        spread = centred.norm(dim=2, keepdim=True) / math.sqrt(self.length)
        signal = torch.where(spread < 1e-6, 0.0, centred / spread.clamp(min=1e-6))
        found = []
        for weights, bias, dilation in draws(self.length, self.kernels, self.channels, self.seed):
            padding = dilation * (weights.shape[1] - 1) // 2
            kernel, offset = weights.unsqueeze(0).to(signal), bias.to(signal)
            values = F.conv1d(signal, kernel, offset, padding=padding, dilation=dilation).squeeze(1)
            found += [values.amax(dim=1), (values > 0).to(signal.dtype).mean(dim=1)]
        return torch.stack(found, dim=1) / math.sqrt(2 * self.kernels)


@lru_cache(maxsize=8)
def draws(length: int, kernels: int, channels: int, seed: int) -> tuple[tuple[Tensor, Tensor, int], ...]:
    """Return each kernel's weights (channels, size) and bias (1,), float64, and its dilation in steps."""
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for _ in range(kernels):
        size = LENGTHS[int(torch.randint(len(LENGTHS), (1,), generator=generator))]
        weights = torch.randn(channels, size, generator=generator, dtype=torch.float64)
        bias = 2.0 * torch.rand(1, generator=generator, dtype=torch.float64) - 1.0
        longest = math.log2((length - 1) / (size - 1))
        dilation = int(2.0 ** (float(torch.rand(1, generator=generator, dtype=torch.float64)) * longest))
        chosen.append((weights - weights.mean(dim=1, keepdim=True), bias, dilation))
    return tuple(chosen)
