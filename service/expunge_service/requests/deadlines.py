"""Deadlines: what each law allows, extending one, once and on record, and warning of those that are near."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from expunge_service.audit import record, recorded_at
from expunge_service.infra.db import NOW, Database
from expunge_service.infra.tables import DeletionRequest
from expunge_service.infra.time import DAY_SECONDS, SECOND, earliest, instant, moment, time_zone
from expunge_service.requests.states import OPEN, RequestRefused, Status
from expunge_service.requests.status import announce_requests
from expunge_service.requests.webhooks import WebhookEvent

NEAR_SECONDS = 7 * DAY_SECONDS
"""as the alert ExpungeDeadlineNear"""
WARNED_AT_ONCE = 500
PLANNED_DAYS = 30
"""within which a request is carried out that has no deadline; it is no deadline itself, and is not shown"""
SHORTEST_MONTH = 28


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
        """Return the end of the span in UTC, counted by the calendar and the clocks of the moment's own time zone.

        A day that the last month lacks becomes that month's last day. Where the clocks there show the end twice, or
        skip it, the earlier reading counts. Raises ValueError where the moment has no time zone.
        """
        if moment.tzinfo is None:
            raise ValueError("received_at needs a timezone.")
        wall = moment.replace(tzinfo=None)
        return earliest(_months_later(wall, self.months) + timedelta(days=self.days), moment.tzinfo)


@dataclass(frozen=True)
class Law:
    """What a law allows: the first deadline, and the one after its single extension. None: it allows no extension.

    ``own``: the law gives no term for a deletion, and the terms here are those of its other requests.
    """

    first: Term
    extended: Term | None = None
    own: bool = False


_EUROPEAN = Law(Term(months=1), Term(months=3))
_AMERICAN = Law(Term(days=45), Term(days=90))
REGULATIONS: dict[Regulation, Law] = {
    Regulation.GDPR: _EUROPEAN,
    Regulation.UK_GDPR: _EUROPEAN,
    Regulation.CCPA: _AMERICAN,
    Regulation.CPA: _AMERICAN,
    Regulation.CTDPA: _AMERICAN,
    Regulation.DELETE_ACT: Law(Term(days=45)),
    Regulation.LGPD: Law(Term(days=15), own=True),
    Regulation.PIPEDA: Law(Term(days=30), Term(days=60), own=True),
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

docs/privacy-officer.md says which public text each row was compared with, and when.
"""


def extend(session: Session, request: DeletionRequest) -> None:
    """Give the request the later deadline that its regulation allows. Raises RequestRefused.

    The reason is not stored: the controller gives it to the person, and the audit log keeps all it gets.
    """
    session.refresh(request, with_for_update=True)
    at = recorded_at(session)
    require_extendable(Status(request.status), request.regulation, request.due_at, request.extended_at, at)
    received = instant(request.received_at).astimezone(zone_of(request))
    later = extended(received, Regulation(request.regulation or ""))
    request.first_due_at, request.extended_at = request.due_at, at
    request.due_at = None if later is None else moment(later)
    record(
        session,
        request.tenant_id,
        "request.extended",
        request_id=request.id,
        received_at=request.received_at,
        first_due_at=request.first_due_at,
        due_at=request.due_at,
    )
    session.flush()


def zone_of(request: DeletionRequest) -> tzinfo:
    """Return the time zone in which the request's deadlines are counted. Raises RequestRefused."""
    try:
        return time_zone(request.time_zone or "UTC")
    except ValueError as error:  # the table of zones was there when the request was accepted
        raise RequestRefused(409, "unknown_time_zone", f"The request's deadlines cannot be counted: {error}.") from None


DUE_SOON = select(DeletionRequest).where(
    DeletionRequest.status.in_((Status.QUEUED, Status.RUNNING, Status.BLOCKED)),
    DeletionRequest.due_at < NOW + NEAR_SECONDS * SECOND,
    or_(DeletionRequest.warned_due_at.is_(None), DeletionRequest.warned_due_at != DeletionRequest.due_at),
)
"""the open requests with a near deadline that was not announced"""


def announce_due_soon(database: Database) -> int:
    """Announce some of those requests, once for each deadline; return how many. Raises Busy."""
    with database.write() as session:
        rows = DUE_SOON.order_by(DeletionRequest.id).limit(WARNED_AT_ONCE).with_for_update()
        requests = session.scalars(rows).all()
        announce_requests(session, *((WebhookEvent.REQUEST_DUE_SOON, request) for request in requests))
        for request in requests:
            request.warned_due_at = request.due_at
        return len(requests)


def due_at(received_at: datetime, regulation: Regulation | None) -> datetime | None:
    """Return the statutory deadline in UTC, counted in the time zone of ``received_at``. None: no regulation was named.

    Raises ValueError where ``received_at`` has no time zone.
    """
    return None if regulation is None else REGULATIONS[regulation].first.after(received_at)


def planned_deadline() -> ColumnElement[int]:
    """Return the moment by which a request is to be carried out: its deadline, or ``PLANNED_DAYS`` from its receipt."""
    span = PLANNED_DAYS * DAY_SECONDS * SECOND
    return func.coalesce(DeletionRequest.due_at, DeletionRequest.received_at + span)


def gives_term(regulation: str | None) -> bool:
    """Tell whether the law of this name itself gives a term for a deletion; a law that is not known here gives none."""
    return regulation in REGULATIONS and not REGULATIONS[Regulation(regulation)].own


def shorter_than(days: float) -> list[Regulation]:
    """Return the laws with a first deadline that may come before so many days are over."""
    return [each for each, law in REGULATIONS.items() if law.first.days + law.first.months * SHORTEST_MONTH < days]


def extended(received_at: datetime, regulation: Regulation) -> datetime | None:
    """Return the deadline after the one extension that the law allows, in UTC. None: it allows none.

    It is counted from the receipt, as the first, and in the same time zone. Raises ValueError: there is none.
    """
    longest = REGULATIONS[regulation].extended
    return None if longest is None else longest.after(received_at)


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
    if status not in OPEN:
        raise RequestRefused(409, "not_open", f"The request is {status}: there is nothing left to do in time.")
    if extended_at is not None:
        raise RequestRefused(409, "already_extended", "The deadline was extended before; the law allows it once.")
    if due_at <= now:
        raise RequestRefused(409, "deadline_passed", "The deadline has passed; it could be extended until then.")


def _months_later(wall: datetime, months: int) -> datetime:
    """Return the same day of a later month, or that month's last day."""
    years, month = divmod(wall.month - 1 + months, 12)
    year, month = wall.year + years, month + 1
    return wall.replace(year=year, month=month, day=min(wall.day, calendar.monthrange(year, month)[1]))
