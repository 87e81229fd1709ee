"""Durations as they are told: rounded up to a power of two of seconds.

How long an update computes tells how many iterations it took, and that is computed from the deleted. A sum or a pair
of exact moments would tell it too, so what is told is the bucket, and an update waits until its bucket is over.
"""

from __future__ import annotations

import math

SHORTEST = 2.0**-10
LONGEST = 2.0**20
BUCKETS = tuple(2.0**power for power in range(-10, 21))
"""upper edges in seconds, from a thousandth of a second to twelve days"""


def bucket(seconds: float) -> float:
    """The upper edge of the bucket that holds ``seconds`` >= 0; the last edge beyond it."""
    mantissa, power = math.frexp(min(max(seconds, SHORTEST), LONGEST))
    return math.ldexp(1.0, power - 1 if mantissa == 0.5 else power)
