"""Answers that did not depend on the deleted: labels that retraining without them gives under the same noise.

A published version is ``y = w~ + noise``, and ``w~`` lies within ``max_distance`` of the retraining. So y lies within
``reach`` of what that retraining would have been published as, with the same noise. A difference of two scores with
slope s, the norm of its derivative in the weights, moves by at most ``reach * s`` between the two. An answer whose
margin over every other class is larger has the same label in both.

Standard library only, so that an answer can be checked where torch is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from unlearning.accounting.gaussian import check_number

SINGLE, DOUBLE = 24, 53
"""binary digits of a stored weight: float32, float64"""
SLACK = 1.0 + 1e-6
"""covers the rounding of norms and of these formulas themselves"""


def reach(max_distance: float, weights_norm: float, digits: int = SINGLE) -> float:
    """Return how far the published weights can lie from a retraining's under the same noise: Delta + 2 r.

    ``max_distance`` (Delta) is the certificate's. ``weights_norm`` is the Euclidean norm of all published weights, and
    r = 2^-digits of it bounds the rounding of either side when it is stored.

    Raises:
        ValueError: a number that is negative or not finite.
    """
    check_number("max_distance", max_distance, least=0.0)
    check_number("weights_norm", weights_norm, least=0.0)
    return SLACK * (max_distance + 2.0 * 2.0**-digits * weights_norm)


def is_independent(margins: Iterable[float], slopes: Iterable[float], reach: float, error: float) -> bool:
    """Tell whether no retraining within ``reach`` gives another label.

    Args:
        margins: for every other class b, ``z_a - z_b`` at the published weights, where a is the answer. With a single
            score z, whose sign is the answer: ``|z|``.
        slopes: the norm of each margin's derivative in the weights. A linear head on features phi (its constant
            included) has ``sqrt(2) ||phi||``, a single score ``||phi||``.
        reach: what ``reach`` returns.
        error: how wrong each margin can be as it was computed.

    NaN and infinity give False.
    """
    pairs = zip(margins, slopes, strict=True)
    return all(reach * slope + error < margin < math.inf for margin, slope in pairs)
