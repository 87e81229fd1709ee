"""Random Fourier features for tables: Rahimi and Recht, "Random features for large-scale kernel machines", 2007."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from unlearning.types import RecipeError


class RandomFourier(nn.Module):
    """``sqrt(2 / m) cos(x G / length + b)``: inner products approximate the kernel exp(-||x - x'||^2 / (2 length^2)).

    Args:
        inputs: numbers in a row, k.
        features: m, numbers in the output.
        length: the kernel's length scale, in the units of the inputs; choose it without looking at the data.
        seed: fixes G (k, m), standard normal, and b (m,), uniform on [0, 2 pi).

    ``forward`` takes (n, k), float32 or float64, and returns (n, m) in the same dtype.

    Raises:
        ValueError: a size below 1, or a length that is not positive.
    """

    def __init__(self, inputs: int, features: int, length: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        if inputs < 1 or features < 1 or not length > 0.0:
            raise RecipeError(f"inputs={inputs}, features={features}, length={length}.", "All must be positive.")
        self.inputs, self.features, self.length, self.seed = inputs, features, float(length), seed

    def forward(self, rows: Tensor) -> Tensor:
        directions, phases = draws(self.inputs, self.features, self.seed)
        turned = rows @ (directions / self.length).to(rows) + phases.to(rows)
        return math.sqrt(2.0 / self.features) * torch.cos(turned)


@lru_cache(maxsize=8)
def draws(inputs: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return G (inputs, features) and b (features,), float64, the same on every machine for one seed."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(inputs, features, generator=generator, dtype=torch.float64)
    return directions, 2.0 * math.pi * torch.rand(features, generator=generator, dtype=torch.float64)
