"""One number in place of an intercept, so that weight decay covers it like every other weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConstantColumn(nn.Module):
    """Append ``value`` to each row: (n, k) -> (n, k + 1).

    The weight of that column times ``value`` is the intercept: it is decayed ``value ** 2`` times less than a weight.
    """

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.value = float(value)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, torch.full_like(rows[:, :1], self.value)], dim=1)
