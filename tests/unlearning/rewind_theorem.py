"""Theorem 3.1 of R2D (arXiv 2409.09778) as it was published, and our h(K), to compare the product's recursion with."""

from __future__ import annotations

import math

from torch import Tensor


def published_h(steps: int, rewound: int, *, rate: float, smoothness: float, samples: int, forgotten: int) -> float:
    """Return h(K) of theorem 3.1 as published; T = ``steps``, K = ``rewound``, n = ``samples``, m = ``forgotten``."""
    _check(steps, rewound, samples, forgotten)
    inflated = rate * smoothness * samples / (samples - forgotten)
    return _grown(inflated, steps - rewound) * _power(rate * smoothness, rewound)


def tight_h(steps: int, rewound: int, rate: float, smoothness: float) -> float:
    """Return ((1 + eta L)^(T-K) - 1) (1 + eta L)^K, never more than the published h(K) (proof above)."""
    _check(steps, rewound, 2, 1)
    return _grown(rate * smoothness, steps - rewound) * _power(rate * smoothness, rewound)


def distance_of(h: float, samples: int, forgotten: int, gradient_bound: float, smoothness: float) -> float:
    """Return Delta = 2 m G h(K) / (L n)."""
    return 2 * forgotten * gradient_bound * h / (smoothness * samples)


def published_noise_std(distance: float, epsilon: float, delta: float) -> float:
    """Return the paper's noise, Delta sqrt(2 ln(1.25/delta)) / epsilon, for comparison. No claim is made with it."""
    return distance * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def lipschitz_ratio(gradient_difference: Tensor, weight_difference: Tensor) -> float:
    """Return ||grad F(v) - grad F(w)|| / ||v - w||: a lower bound of L (the paper prints it inverted)."""
    return float(gradient_difference.norm() / weight_difference.norm())


def _check(steps: int, rewound: int, samples: int, forgotten: int) -> None:
    if not 0 < rewound <= steps:
        raise ValueError(f"K is {rewound} of {steps} steps: choose 1..{steps}")
    if not 0 <= forgotten < samples:
        raise ValueError(f"m is {forgotten} of {samples} samples: at least one must stay")


def _power(growth: float, steps: int) -> float:
    """Return (1 + growth)^steps, infinite instead of an overflow."""
    exponent = steps * math.log1p(growth)
    return math.exp(exponent) if exponent < 709 else math.inf


def _grown(growth: float, steps: int) -> float:
    """Return (1 + growth)^steps - 1 without cancellation."""
    exponent = steps * math.log1p(growth)
    return math.expm1(exponent) if exponent < 709 else math.inf
