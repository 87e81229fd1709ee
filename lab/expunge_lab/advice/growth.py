"""Times that were measured on a part of the people, scaled up to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Point: TypeAlias = tuple[float, float]
"""(share of the people, seconds)"""

TINY = 1e-6
"""seconds; errors of shorter times are not relative to them, because a time may be 0"""


def scaled(points: Sequence[Point], share: float, growth: int = 1) -> float:
    """Return the seconds at ``share``, from points in increasing order of share; a measured share gives its own.

    Times grow as ``a s^(growth - 1) + b s^growth`` with a and b of at least 0, by least squares of relative errors.
    From a single point they grow with ``s^growth`` alone.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (half a second that a worker needs once in a while)

    known = dict(points)
    if share in known:
        return known[share]
    if len(points) == 1:
        (at, seconds), *_ = points
        return seconds * (share / at) ** growth
    units = [max(seconds, TINY) for _, seconds in points]
    rows = [[at ** (growth - 1) / unit, at**growth / unit] for (at, _), unit in zip(points, units, strict=True)]
    (slow, fast), _ = nnls(rows, [seconds / unit for (_, seconds), unit in zip(points, units, strict=True)])
    return float(slow * share ** (growth - 1) + fast * share**growth)
