"""How the pages say things: spans of time, moments, numbers, and the names of what happened."""

from __future__ import annotations

import math

from service.infra.time import instant

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
HAPPENINGS = {
    "request.accepted": "Accepted",
    "request.queued": "Back in the queue",
    "request.completed": "Completed",
    "request.blocked": "Blocked",
    "request.cancelled": "Cancelled",
    "request.rejected": "Rejected",
    "request.extended": "Deadline extended",
    "request.retried": "Driven on by an operator",
    "request.verified": "Verified",
    "update.blocked": "Its update was blocked",
    "certificate.issued": "Certificate issued",
}
REASONS = {
    "already_forgotten": "it was forgotten before",
    "awaiting_consumers": "published; somebody still serves a version from before",
    "awaiting_retrain": "it waits for a retraining that is under way",
    "beyond_calibration": "more people were forgotten than the calibration covers",
    "budget_exhausted": "the budget does not pay for another update",
    "cap_not_reached": "the distance to a retraining could not be brought below the promised one",
    "environment_changed": "this worker's software or device is not the one that the claim was made for",
    "large": "it takes unusually much; it waits for an approval, or until its hold window is over",
    "left_out": "its samples were left out of the training from the start",
    "legal_hold": "a legal hold stands against it",
    "method_refused": "the method refuses to forget these samples",
    "model_refused": "the model was refused at registration and was never published",
    "model_retired": "nothing of this model is served any more",
    "no_match": "no model was trained on this subject",
    "nobody_left": "nobody would be left in the model",
    "partial_subject": "it names a part of a person's samples, and this model forgets whole people",
    "recipe_changed": "the recipe is not the one that the model was registered with",
    "recipe_refused": "the recipe cannot be run any more",
    "retrain_refused": "the retraining was refused",
    "samples_changed": "the recipe gives other samples than at registration",
    "state_damaged": "the model's sealed state cannot be read",
    "state_format_unknown": "the model's sealed state is from another version of this software",
    "unverified": "nobody has verified who asks; it changes nothing until it is verified or rejected",
    "utility_gate": "the accuracy on the holdout fell by more than the policy allows",
    "vectors_missing": "the stored vectors of some people are missing",
    "weights_not_finite": "the result has weights that are not finite numbers",
    "worker_lost": "the worker was lost while at it",
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


def reason(code: str) -> str:
    """Say in words why a request or its part waits or ended; a code without words stays as it is."""
    return REASONS.get(code, code)


def sentence(text: str) -> str:
    """Begin with a capital and end with a full stop; every other letter stays as it is."""
    return f"{text[:1].upper()}{text[1:]}."
