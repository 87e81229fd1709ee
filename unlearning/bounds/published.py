"""What may be published of a bound: constants rounded to one digit, and no vacuous greatest distance."""

from __future__ import annotations

import math

from unlearning.types import Refused

RAISE = "Raise max_distance and noise_std together, forget from further back, or train slower."
SAMPLED = "measured on everyone at a few points, rounded up to one digit: a lower bound of the truth before rounding"


def rounded_up(value: float) -> float:
    """Return one significant digit, rounded towards plus infinity; what is below 1e-12 in size becomes 0 or 1e-12.

    A published constant that is measured on all people should tell little about each.
    """
    if abs(value) <= 1e-12:
        return 0.0 if value <= 0 else 1e-12
    scale = 10.0 ** math.floor(math.log10(abs(value)))
    return float(f"{math.ceil(value / scale - 1e-9) * scale:.6g}")


def require_below(max_distance: float, ignorance: float, which: str) -> None:
    """Raise Refused where ``max_distance`` is no less than what holds for any forgotten people: ``which`` end within
    ``ignorance``.
    """
    if max_distance >= ignorance:
        raise Refused(
            f"max_distance {max_distance:g} is vacuous: {which} end within {ignorance:.3g} of each other for any "
            f"forgotten people.",
            "Lower max_distance, and noise_std with it.",
        )
