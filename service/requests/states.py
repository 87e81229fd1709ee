"""The states of a deletion request: pure rules, no I/O. The status follows from the tasks, deadlines from the law."""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from expunge.service.requests.reasons import Reason

CASE_ID = r"^[A-Za-z0-9][A-Za-z0-9._:/#-]{0,63}$"
"""the controller's own id of a case"""


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    BLOCKED = "blocked"


class Regulation(StrEnum):
    """A law that gives people the right to be forgotten, and those who hold their data a deadline."""

    GDPR = "gdpr"
    UK_GDPR = "uk-gdpr"
    CCPA = "ccpa"
    CPA = "cpa"
    CTDPA = "ctdpa"
    DELETE_ACT = "delete-act"
    LGPD = "lgpd"
    PIPEDA = "pipeda"
    TDPSA = "tdpsa"
    UCPA = "ucpa"
    VCDPA = "vcdpa"


@dataclass(frozen=True)
class Term:
    """A span of calendar months or of days, counted from the receipt of a request."""

    days: int = 0
    months: int = 0

    def after(self, moment: datetime) -> datetime:
        """Return the end of the span. A day that the last month lacks becomes that month's last day."""
        return _months_later(moment, self.months) + timedelta(days=self.days)


@dataclass(frozen=True)
class Law:
    """What a law allows: the first deadline, and the one after its single extension. None: it allows no extension."""

    first: Term
    extended: Term | None = None


_EUROPEAN = Law(Term(months=1), Term(months=3))
_AMERICAN = Law(Term(days=45), Term(days=90))
REGULATIONS: dict[Regulation, Law] = {
    Regulation.GDPR: _EUROPEAN,
    Regulation.UK_GDPR: _EUROPEAN,
    Regulation.CCPA: _AMERICAN,
    Regulation.CPA: _AMERICAN,
    Regulation.CTDPA: _AMERICAN,
    Regulation.DELETE_ACT: Law(Term(days=45)),
    Regulation.LGPD: Law(Term(days=15)),
    Regulation.PIPEDA: Law(Term(days=30), Term(days=60)),
    Regulation.TDPSA: _AMERICAN,
    Regulation.UCPA: _AMERICAN,
    Regulation.VCDPA: _AMERICAN,
}
"""The deadlines by law. All are counted from the receipt, the extended ones too.

- GDPR, Article 12(3): one month, by two further months where necessary. The same in the UK GDPR, Article 12(3).
- CCPA, California Civil Code 1798.130(a)(2)(A): 45 days, once by 45 more.
- CPA, Colorado Revised Statutes 6-1-1306(2)(a) and (b): 45 days, once by 45 more.
- CTDPA, Connecticut General Statutes 42-518(c)(1): 45 days, once by 45 more.
- Delete Act, California Civil Code 1798.99.86(c): within 45 days of fetching the list; no extension.
- LGPD, Brazil, Law 13.709/2018: Article 18, paragraph 5 leaves the term of a deletion to a regulation that is not made.
  The 15 days are those of Article 19, II for access, taken here because they are the only term that the law gives.
- PIPEDA, Canada, section 8(3) and (4): 30 days, by at most 30 more. Written for access requests.
- TDPSA, Texas Business and Commerce Code 541.052: 45 days, once by 45 more.
- UCPA, Utah Code 13-61-203: 45 days, once by 45 more.
- VCDPA, Code of Virginia 59.1-577(B): 45 days, once by 45 more.

docs/operations/runbooks.md says which public text each row was compared with, and when.
"""


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
        actions: the steps that do help, as ``expunge.service.requests.reasons.actions`` gives them.
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
    """Return the statutory deadline in UTC. None: no regulation was named.

    Raises ValueError where ``received_at`` has no timezone.
    """
    if regulation is None:
        _in_utc(received_at)
        return None
    return REGULATIONS[regulation].first.after(_in_utc(received_at))


def extended(received_at: datetime, regulation: Regulation) -> datetime | None:
    """Return the deadline after the one extension that the law allows, in UTC. None: it allows none.

    It is counted from the receipt, as the first. Raises ValueError where ``received_at`` has no timezone.
    """
    longest = REGULATIONS[regulation].extended
    return None if longest is None else longest.after(_in_utc(received_at))


def _in_utc(received_at: datetime) -> datetime:
    if received_at.tzinfo is None:
        raise ValueError("received_at needs a timezone.")
    return received_at.astimezone(UTC)


def require_extendable(
    status: Status, regulation: str | None, due_at: int | None, extended_at: int | None, now: int
) -> None:
    """Check that the deadline may be extended now; moments in microseconds since 1970. Raises RequestRefused.

    The person must be informed within the first deadline, so afterwards it is too late.
    """
    if due_at is None:
        raise RequestRefused(409, "no_deadline", "The request names no regulation, so it has no deadline to extend.")
    if regulation is None or REGULATIONS[Regulation(regulation)].extended is None:
        law = "Your own deadline" if regulation is None else f"The deadline of {regulation}"
        raise RequestRefused(409, "not_extendable", f"{law} cannot be extended.")
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
