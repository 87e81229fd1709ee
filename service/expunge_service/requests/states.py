"""The states of a deletion request: pure rules, no I/O. The status follows from the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from expunge_service.requests.reasons import Reason

CASE_ID = r"^[A-Za-z0-9][A-Za-z0-9._:/#-]{0,63}$"
"""the controller's own id of a case"""


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    BLOCKED = "blocked"


class Suppress(StrEnum):
    """In which later registrations a request that names models keeps the person out."""

    EVERYWHERE = "everywhere"
    NAMED_MODELS = "named_models"


class RequestRefused(Exception):
    """A deletion request, a registration, or a step of one is refused. No data changed.

    Args:
        status: the HTTP status of the answer: 400, 409 or 422.
        code: a stable name in snake_case that clients may test for.
        what: what happened and what to do, without any value that the client sent.
        errors: one entry for each faulty field: ``pointer`` or ``header``, and ``detail``.
        retry_seconds: when the same call may succeed; None: not by waiting.
        actions: the steps that do help, as ``expunge_service.requests.reasons.actions`` gives them.
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


OPEN = frozenset({Status.QUEUED, Status.RUNNING, Status.BLOCKED})
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.BLOCKED, Status.COMPLETED, Status.CANCELLED}),
    # back to queued: the worker's lease was taken over
    Status.RUNNING: frozenset({Status.QUEUED, Status.BLOCKED, Status.COMPLETED}),
    # rejected: only while unverified, before any task exists
    Status.BLOCKED: frozenset({Status.QUEUED, Status.RUNNING, Status.COMPLETED, Status.CANCELLED, Status.REJECTED}),
    # reopened: a later publication met the request's suppression entry again
    Status.COMPLETED: OPEN,
    Status.CANCELLED: frozenset(),
    Status.REJECTED: frozenset(),
}


def derive(tasks: Iterable[str]) -> Status:
    """Return the request's status, which follows from its tasks'; the first match counts.

    Without tasks there was no sample to forget, so the request is completed.
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
        "Only an unverified request can be rejected; this one counts as verified. Cancel it before a worker begins, "
        "or place a legal hold on what must be kept."
    )
    raise RequestRefused(409, "not_unverified", what)


def step(old: Status, new: Status) -> Status:
    """Return ``new`` if a request may take that status after ``old``. Raises ValueError otherwise."""
    if new != old and new not in TRANSITIONS[old]:
        raise ValueError(f"A {old} request cannot become {new}.")
    return new
