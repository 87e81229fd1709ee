"""In words, what a model used of a budget."""

from __future__ import annotations

ACCURACY = "accuracy"


def used_of(kind: str, used: float, limit: float | None, metric: str | None) -> str:
    """Write what is used of a budget and, where something ends it, the limit: ``2.5 of 10 points given up``.

    ``metric``: of the holdout; None: an accuracy.
    """
    match kind:
        case "rounds":
            return f"{_of(used, limit, ',.0f')} updates made"
        case "share":  # only a calibration ends a share, and it counts people
            whom = "samples" if limit is None else "people"
            return f"{_of(100 * used, None if limit is None else 100 * limit, '.4g')} % of the {whom} forgotten"
        case "accuracy" if (metric or ACCURACY) == ACCURACY:
            return f"{_of(100 * used, None if limit is None else 100 * limit, '.3g')} points given up"
        case "accuracy":
            return f"{_of(used, limit, '.4g')} {metric} given up"
        case _:  # epsilon, or a kind of a later service
            return f"{kind} {_of(used, limit, '.4g')} spent"


def _of(used: float, limit: float | None, form: str) -> str:
    return f"{used:{form}}" + ("" if limit is None else f" of {limit:{form}}")
