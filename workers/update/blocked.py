"""Why an update cannot be made, and which of the reasons a retrain mends."""

from __future__ import annotations

import re

from unlearning.types import Json

NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
"""what a refusal measured (a residual, a bound) is computed from people's data: what lasts tells the words alone"""
RETRAIN_HELPS = frozenset(
    {
        "beyond_calibration",
        "cap_not_reached",
        "environment_changed",
        "method_refused",
        "partial_subject",
        "state_damaged",
        "state_format_unknown",
        "vectors_missing",
        "weights_not_finite",
    }
)
"""what a cold retrain mends; changed samples or a changed recipe it does not"""


class Blocked(RuntimeError):
    """The update cannot be made; its tasks are blocked, visibly. ``facts`` are counts for the audit log."""

    def __init__(self, reason: str, **facts: Json) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts
