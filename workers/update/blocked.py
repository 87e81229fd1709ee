"""Why an update cannot be made, and which of the reasons a retrain mends."""

from __future__ import annotations

import re

from service.requests.reasons import Reason
from unlearning.types import Json

NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
"""what a refusal measured (a residual, a bound) is computed from people's data: what lasts tells the words alone"""
RETRAIN_HELPS = frozenset(
    {
        Reason.BEYOND_CALIBRATION,
        Reason.CAP_NOT_REACHED,
        Reason.ENVIRONMENT_CHANGED,
        Reason.METHOD_REFUSED,
        Reason.PARTIAL_SUBJECT,
        Reason.STATE_DAMAGED,
        Reason.STATE_FORMAT_UNKNOWN,
        Reason.VECTORS_MISSING,
        Reason.WEIGHTS_NOT_FINITE,
    }
)
"""what a cold retrain mends; changed samples or a changed recipe it does not"""


class Blocked(RuntimeError):
    """The update cannot be made; its tasks are blocked, visibly. ``facts`` are counts for the audit log."""

    def __init__(self, reason: Reason, **facts: Json) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts
