"""The life of a deletion request: pure rules, no I/O. Status follows from the tasks; deadlines from the law."""

from __future__ import annotations

import calendar
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    HELD = "held"


class Regulation(StrEnum):
    GDPR = "gdpr"
    CCPA = "ccpa"


class IllegalTransition(RuntimeError):
    """A request was about to take a step that its life does not have."""


_OPEN = frozenset({Status.QUEUED, Status.RUNNING, Status.HELD})
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.HELD, Status.COMPLETED, Status.CANCELLED}),
    # back to queued: the worker's lease was taken over
    Status.RUNNING: frozenset({Status.QUEUED, Status.HELD, Status.COMPLETED}),
    Status.HELD: frozenset({Status.QUEUED, Status.RUNNING, Status.COMPLETED, Status.CANCELLED}),
    # reopened: a later publication met the request's tombstone again
    Status.COMPLETED: _OPEN,
    Status.CANCELLED: frozenset(),
    Status.REJECTED: frozenset(),
}


def derive(tasks: Iterable[str]) -> Status:
    """The request's status from its tasks', first match. No tasks: there was nothing to forget, it is completed."""
    seen = set(tasks)
    for status in (Status.HELD, Status.RUNNING, Status.QUEUED):
        if status in seen:
            return status
    return Status.CANCELLED if seen == {Status.CANCELLED} else Status.COMPLETED


def step(old: Status, new: Status) -> Status:
    """``new``, if a request may go there from ``old``. Raises IllegalTransition otherwise."""
    if new != old and new not in TRANSITIONS[old]:
        raise IllegalTransition(f"A {old} request cannot become {new}.")
    return new


def due_at(received_at: datetime, regulation: Regulation | None) -> datetime | None:
    """The statutory deadline in UTC. GDPR: one calendar month, clamped to the month's end. CCPA: 45 calendar days.

    Raises:
        ValueError: ``received_at`` has no timezone.
    """
    if received_at.tzinfo is None:
        raise ValueError("received_at needs a timezone.")
    received = received_at.astimezone(UTC)
    if regulation is None:
        return None
    return received + timedelta(days=45) if regulation is Regulation.CCPA else _month_later(received)


def _month_later(moment: datetime) -> datetime:
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return moment.replace(year=year, month=month, day=min(moment.day, calendar.monthrange(year, month)[1]))
