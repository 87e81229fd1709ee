"""The words of the pages: spans of time, moments, numbers, and the names of the log's entries."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from expunge_client import budgets
from expunge_service.infra.time import instant
from expunge_service.models import ModelBudget

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
HAPPENINGS = {
    "request.accepted": "Accepted",
    "request.queued": "Back in the queue",
    "request.completed": "Completed",
    "request.blocked": "Blocked",
    "consent.given": "First of two people agreed",
    "request.cancelled": "Cancelled",
    "request.rejected": "Rejected",
    "request.extended": "Deadline extended",
    "request.approved": "Approved",
    "request.retried": "Retried",
    "request.verified": "Verified",
    "update.blocked": "Update blocked",
    "update.claimed": "Update begun by a worker",
    "preparation.claimed": "Preparation begun by a worker",
    "attempt.given_back": "Given back by a worker that was asked to stop or rest",
    "worker.drained": "A worker was asked to take no work",
    "worker.resumed": "A worker was asked to take work again",
    "version.published": "Version published",
    "certificate.issued": "Certificate issued",
}


def span(seconds: float) -> str:
    """Write a length of time in at most two units: ``29 d 4 h``, ``3 min 20 s``, ``0 s``."""
    left = max(0, int(seconds))
    parts = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        parts.append((count, unit))
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count) or "0 s"


def days(seconds: float) -> str:
    """Write a length of time in whole days: ``28 days``, ``1 day``, ``less than a day``."""
    count = int(seconds // 86_400)
    return "less than a day" if count < 1 else "1 day" if count == 1 else f"{count:,} days"


def moment(at: int) -> str:
    """Write microseconds since 1970 as ``2026-01-31 12:00:05 UTC``."""
    return f"{instant(at):%Y-%m-%d %H:%M:%S} UTC"


def calendar_day(at: int) -> str:
    """Write microseconds since 1970 as ``22 Oct``; with its year where that is another than the present one's."""
    then = instant(at)
    return f"{then.day} {then:%b}" if then.year == datetime.now(UTC).year else f"{then.day} {then:%b %Y}"


def machine_time(at: int) -> str:
    """Write microseconds since 1970 in RFC 3339, for ``<time datetime>``."""
    return instant(at).isoformat(timespec="seconds").replace("+00:00", "Z")


def number(value: float) -> str:
    """Write four significant digits, and whole numbers in full with a separator of thousands."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def measured(value: float, metric: str | None) -> str:
    """Write a figure of the holdout: an accuracy in percent, and what another metric gives with its name.

    ``metric`` is None where a generation of before 0.3 does not say: an accuracy.
    """
    if metric in (None, "accuracy"):
        return f"{round(100 * value, 2)} %"
    return f"{metric} {number(float(value))}"


def used_of(budget: ModelBudget, metric: str | None) -> str:
    """Write what is used of a budget, and where it ends. ``metric``: of the holdout; None: an accuracy."""
    return budgets.used_of(budget.kind, budget.used, budget.limit, metric)


def happening(kind: str) -> str:
    """Name an entry of the audit log; a kind without a name here is written out: ``Hold placed``."""
    return HAPPENINGS.get(kind, re.sub("[._]", " ", kind).capitalize())


def as_pair(code: str) -> tuple[str, str]:
    """Return a code as the value and the text of a choice: ``legal_hold`` reads ``legal hold``."""
    return code, code.replace("_", " ")
