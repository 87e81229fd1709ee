"""What R2D's rows rest on: SmeLU is smooth, and the figure's arithmetic is that of theorem 3.1."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.papers.r2d import EICU, SmeLU
from unlearning.accounting.budget import mu_at


def test_smelu_is_a_relu_away_from_zero_and_its_slope_has_no_jump() -> None:
    x = torch.linspace(-3, 3, 6001, dtype=torch.float64, requires_grad=True)
    y = SmeLU()(x)
    slope = torch.autograd.grad(y.sum(), x)[0]
    far = x.detach().abs() >= 1.0
    assert torch.equal(y.detach()[far], torch.relu(x.detach())[far])
    assert float(slope.diff().abs().max() / 1e-3) == pytest.approx(0.5, rel=1e-6)


def test_figure_1c_by_a_sum_written_out() -> None:
    """Theorem 3.1's h(K) with plain powers, in place of the logarithms that the rows use."""
    steps, rewound = 52 * 185, round(0.22 * 52 * 185)
    n, m = 94449, 944
    step = EICU.rate * EICU.smoothness
    h = ((1 + step * n / (n - m)) ** (steps - rewound) - 1) * (1 + step) ** rewound
    distance = 2 * m * EICU.gradient * h / (EICU.smoothness * n)
    assert EICU.distance(rewound) == pytest.approx(distance, rel=1e-9)
    assert EICU.orders(rewound) == pytest.approx(math.log10(distance), rel=1e-9)
    assert round(distance / mu_at(40.0, 0.1), 4) == 0.0229
    classic = distance * math.sqrt(2 * math.log(12.5)) / 40.0
    assert round(classic, 4) != 0.0229  # the formula of the theorem itself is unproved at epsilon 40
