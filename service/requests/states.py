"""The states of a deletion request: pure rules, no I/O. The status follows from the tasks, deadlines from the law."""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from service.requests.reasons import Reason


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    BLOCKED = "blocked"


class Regulation(StrEnum):
    GDPR = "gdpr"
    CCPA = "ccpa"


class Suppress(StrEnum):
    """In which later registrations a request that names models keeps the person out."""

    EVERYWHERE = "everywhere"
    NAMED_MODELS = "named_models"


class RequestRefused(Exception):
    """A deletion request, a registration, or a step of one is refused. Nothing was changed.

    Args:
        status: the HTTP status of the answer: 400, 409 or 422.
        code: a stable name in snake_case that clients may test for.
        what: what happened and what to do, without any value that the client sent.
        errors: one entry for each faulty field: ``pointer`` or ``header``, and ``detail``.
        retry_seconds: when the same call may succeed; None: not by waiting.
        actions: the steps that do help, as ``service.requests.reasons.actions`` gives them.
    """

    def __init__(
        self,
        status: int,
        code: str,
        what: str,
        errors: Sequence[dict[str, str]] = (),
        retry_seconds: int | None = None,
        *,
        actions: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(what)
        self.actions = actions
        self.status = status
        self.code = code
        self.errors = errors
        self.retry_seconds = retry_seconds


_OPEN = frozenset({Status.QUEUED, Status.RUNNING, Status.BLOCKED})
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.BLOCKED, Status.COMPLETED, Status.CANCELLED}),
    # back to queued: the worker's lease was taken over
    Status.RUNNING: frozenset({Status.QUEUED, Status.BLOCKED, Status.COMPLETED}),
    # rejected: only while unverified, before any task exists
    Status.BLOCKED: frozenset({Status.QUEUED, Status.RUNNING, Status.COMPLETED, Status.CANCELLED, Status.REJECTED}),
    # reopened: a later publication met the request's suppression entry again
    Status.COMPLETED: _OPEN,
    Status.CANCELLED: frozenset(),
    Status.REJECTED: frozenset(),
}


def derive(tasks: Iterable[str]) -> Status:
    """Return the request's status, which follows from its tasks'; the first match counts.

    Without tasks there was nothing to forget, so the request is completed.
    """
    seen = set(tasks)
    for status in (Status.BLOCKED, Status.RUNNING, Status.QUEUED):
        if status in seen:
            return status
    return Status.CANCELLED if seen == {Status.CANCELLED} else Status.COMPLETED


def awaits_decision(status: Status, reason: str | None) -> bool:
    """Return whether the request is unverified: blocked until it is verified, rejected or withdrawn."""
    return status is Status.BLOCKED and reason == Reason.UNVERIFIED


def stands_alone(status: Status, reason: str | None) -> bool:
    """Return whether a request without tasks has a status that a person decided, so ``derive`` does not apply."""
    return status in (Status.REJECTED, Status.CANCELLED) or awaits_decision(status, reason)


def may_verify(status: Status, reason: str | None) -> bool:
    """Return whether verifying changes anything; False: it was verified before.

    Raises RequestRefused where it cannot be verified any more.
    """
    if status in (Status.REJECTED, Status.CANCELLED):
        what = f"The request was {status}, and stays so. Send a new, verified request if the person did ask."
        raise RequestRefused(409, f"already_{status}", what)
    return awaits_decision(status, reason)


def may_reject(status: Status, reason: str | None) -> bool:
    """Return whether rejecting changes anything; False: it was rejected before.

    Raises RequestRefused where it cannot be rejected any more.
    """
    if status is Status.REJECTED or awaits_decision(status, reason):
        return status is not Status.REJECTED
    if status is Status.CANCELLED:
        raise RequestRefused(409, "already_cancelled", "The request was cancelled: nothing is left to reject.")
    what = (
        "Only an unverified request can be rejected; this one counts as verified. Cancel it inside its cancel window, "
        "or place a legal hold on what must be kept."
    )
    raise RequestRefused(409, "not_unverified", what)


def step(old: Status, new: Status) -> Status:
    """Return ``new`` if a request may take that status after ``old``. Raises ValueError otherwise."""
    if new != old and new not in TRANSITIONS[old]:
        raise ValueError(f"A {old} request cannot become {new}.")
    return new


def due_at(received_at: datetime, regulation: Regulation | None) -> datetime | None:
    """Return the statutory deadline in UTC. GDPR: one calendar month, clamped to its end. CCPA: 45 calendar days.

    Raises:
        ValueError: ``received_at`` has no timezone.
    """
    if received_at.tzinfo is None:
        raise ValueError("received_at needs a timezone.")
    received = received_at.astimezone(UTC)
    if regulation is None:
        return None
    return received + timedelta(days=45) if regulation is Regulation.CCPA else _months_later(received, 1)


def extended(received_at: datetime, regulation: Regulation) -> datetime:
    """Return the deadline after the one extension that the law allows, in UTC.

    GDPR, Article 12(3): by two further months, three calendar months in all. CCPA, 1798.130(a)(2): by 45 days, 90 in
    all. Both are counted from the receipt. Raises ValueError where ``received_at`` has no timezone.
    """
    if received_at.tzinfo is None:
        raise ValueError("received_at needs a timezone.")
    received = received_at.astimezone(UTC)
    return received + timedelta(days=90) if regulation is Regulation.CCPA else _months_later(received, 3)


def require_extendable(status: Status, due_at: int | None, extended_at: int | None, now: int) -> None:
    """Check that the deadline may be extended now; moments in microseconds since 1970. Raises RequestRefused.

    The person must be informed within the first deadline, so afterwards it is too late.
    """
    if due_at is None:
        raise RequestRefused(409, "no_deadline", "The request names no regulation, so it has no deadline to extend.")
    if status not in _OPEN:
        raise RequestRefused(409, "not_open", f"The request is {status}: there is nothing left to do in time.")
    if extended_at is not None:
        raise RequestRefused(409, "already_extended", "The deadline was extended before; the law allows it once.")
    if due_at <= now:
        raise RequestRefused(409, "deadline_passed", "The deadline has passed; it could be extended until then.")


def _months_later(moment: datetime, months: int) -> datetime:
    """Return the same day of a later month, or that month's last day."""
    years, month = divmod(moment.month - 1 + months, 12)
    year, month = moment.year + years, month + 1
    return moment.replace(year=year, month=month, day=min(moment.day, calendar.monthrange(year, month)[1]))
