"""How the pages say things: spans of time, moments, numbers, and the names of what happened."""

from __future__ import annotations

import math

from service.moments import instant

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
HAPPENINGS = {
    "request.accepted": "Accepted",
    "request.queued": "Back in the queue",
    "request.completed": "Completed",
    "request.held": "Held",
    "request.cancelled": "Cancelled",
    "request.rejected": "Rejected",
    "request.extended": "Deadline extended",
    "request.released": "Driven on by an operator",
    "request.verified": "Verified",
    "release.held": "Its release was held",
    "certificate.issued": "Certificate issued",
}
REASONS = {
    "no_match": "no model was trained on this subject",
    "worker_lost": "the worker was lost while at it",
    "partial_subject": "it names a part of a person's samples, and this model forgets whole people",
    "large": "it takes unusually much; it waits for an approval, or until its hold window is over",
    "awaiting_consumers": "published; somebody still serves a version from before",
    "already_forgotten": "it was forgotten before",
    "legal_hold": "a legal hold stands against it",
    "model_retired": "nothing of this model is served any more",
    "unverified": "nobody has verified who asks; it changes nothing until it is verified or rejected",
}


def span(seconds: float) -> str:
    """A length of time in at most two units: ``29 d 4 h``, ``3 min 20 s``, ``0 s``."""
    left = max(0, int(seconds))
    parts = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        parts.append((count, unit))
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count) or "0 s"


def moment(at: int) -> str:
    """Microseconds since 1970 as ``2026-01-31 12:00:05 UTC``."""
    return f"{instant(at):%Y-%m-%d %H:%M:%S} UTC"


def machine_time(at: int) -> str:
    """The same in RFC 3339, for ``<time datetime>``."""
    return instant(at).isoformat(timespec="seconds").replace("+00:00", "Z")


def number(value: float) -> str:
    """Four significant digits; whole numbers whole, with thousands apart."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def happening(kind: str) -> str:
    return HAPPENINGS.get(kind, kind.replace(".", " ").replace("_", " ").capitalize())


def reason(text: str) -> str:
    return REASONS.get(text, text.replace("_", " "))
