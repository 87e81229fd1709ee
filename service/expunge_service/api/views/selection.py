"""Which requests a list shows: its filters, its order and its pages. The overview counts by the same filters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, date, datetime, time
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, tuple_
from sqlalchemy.orm import Session

from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import LARGEST_NUMBER
from expunge_service.infra.db import batches
from expunge_service.infra.tables import DeletionRequest, Model, Task
from expunge_service.infra.time import DAY_SECONDS, SECOND, moment
from expunge_service.requests import Regulation, Status

OPEN = ("queued", "running", "blocked")
STATUSES = ("open", *Status)
DUE = {
    "overdue": "overdue now",
    "7": "due within 7 days",
    "30": "due within 30 days",
    "45": "due within 45 days",
    "missed": "deadline missed, ended or not",
}
SORTS = {"newest": "newest first", "oldest": "oldest first", "due": "nearest deadline first"}
ROWS = 50
MOST_COUNTED = 10_000
"""a page of the list counts no further: it would read all requests that ever were"""
_request = DeletionRequest


@dataclass(frozen=True)
class ListFilter:
    """The filters of a list. Empty ones do not filter; days are dates in UTC, the last one included.

    ``status`` is a status, or ``open``; where a model is chosen it is that of the model's part.
    """

    status: str = ""
    reason: str = ""
    model: str = ""
    regulation: str = ""
    due: str = ""
    received_from: str = ""
    received_to: str = ""
    sort: str = "newest"
    page: int = 1

    def __post_init__(self) -> None:
        allowed = {"status": STATUSES, "due": DUE, "sort": SORTS, "regulation": tuple(Regulation)}
        for name, values in allowed.items():
            given = getattr(self, name)
            if given and given not in values:
                raise ApiProblem(422, "unknown_filter", f"The filter {name} may be: {', '.join(values)}.")
        if not 1 <= self.page <= LARGEST_NUMBER:
            raise ApiProblem(422, "unknown_filter", f"Pages count from 1 to {LARGEST_NUMBER}.")
        for name in ("received_from", "received_to"):
            _day(name, getattr(self, name))

    def address(self, path: str = "/console/requests", **changes: Any) -> str:
        """Return the address of the list with these filters, some of them changed."""
        given = asdict(replace(self, **changes))
        return f"{path}?{urlencode({name: value for name, value in given.items() if value != _DEFAULTS[name]})}"

    def conditions(self, tenant_id: str, at: int) -> list[ColumnElement[bool]]:
        """Return what a request must fulfil at this moment (microseconds since 1970)."""
        found = [_request.tenant_id == tenant_id, *_due(self.due, at)]
        if self.model:
            found.append(_request.id.in_(self._parts(tenant_id)))
        elif self.status:
            found.append(_request.status.in_(_statuses(self.status)))
        if self.reason:
            found.append(_request.reason == self.reason)
        if self.regulation:
            found.append(_request.regulation == self.regulation)
        first, last = _day("received_from", self.received_from), _day("received_to", self.received_to)
        if first is not None:
            found.append(_request.received_at >= first)
        if last is not None:
            found.append(_request.received_at < last + DAY_SECONDS * SECOND)
        return found

    def _parts(self, tenant_id: str) -> Select[str]:
        """Select the requests with a part in the model that has the status."""
        named = _with_model(tenant_id, self.model)
        return named.where(Task.status.in_(_statuses(self.status))) if self.status else named


_DEFAULTS = {each.name: each.default for each in fields(ListFilter)}


def count(session: Session, chosen: ListFilter, tenant_id: str, at: int, most: int | None = None) -> int:
    """Return how many requests the list shows on all its pages; no more than ``most`` are counted."""
    shown = select(_request.id).where(*chosen.conditions(tenant_id, at)).limit(most).subquery()
    return session.scalar(select(func.count()).select_from(shown)) or 0


def page_of(session: Session, chosen: ListFilter, tenant_id: str, at: int) -> list[DeletionRequest]:
    """Return the requests of the selection's page, in its order."""
    rows = _ordered(select(_request), chosen).where(*chosen.conditions(tenant_id, at))
    return list(session.scalars(rows.offset((chosen.page - 1) * ROWS).limit(ROWS)))


def all_of(session: Session, chosen: ListFilter, tenant_id: str, at: int) -> Iterator[list[DeletionRequest]]:
    """Yield all requests of the selection in its order, some hundreds at a time."""
    ids = session.scalars(_ordered(select(_request.id), chosen).where(*chosen.conditions(tenant_id, at))).all()
    for some in batches(ids):
        found = {row.id: row for row in session.scalars(select(_request).where(_request.id.in_(some)))}
        yield [found[each] for each in some if each in found]


def newest(
    session: Session,
    tenant_id: str,
    *,
    status: Status | None = None,
    model: str | None = None,
    id_prefix: str | None = None,
    case_id: str | None = None,
    after: tuple[int, str] | None = None,
    limit: int,
) -> Sequence[DeletionRequest]:
    """Return the requests that came last, from those taken in before ``after`` (moment, id)."""
    rows = select(_request).where(_request.tenant_id == tenant_id)
    if status is not None:
        rows = rows.where(_request.status == status)
    if case_id is not None:
        rows = rows.where(_request.case_id == case_id)
    if model is not None:
        rows = rows.where(_request.id.in_(_with_model(tenant_id, model)))
    if id_prefix is not None:
        rows = rows.where(_request.id.startswith(id_prefix))
    if after is not None:
        rows = rows.where(tuple_(_request.created_at, _request.id) < after)
    return session.scalars(rows.order_by(_request.created_at.desc(), _request.id.desc()).limit(limit)).all()


def _with_model(tenant_id: str, name: str) -> Select[str]:
    named = select(Task.request_id).join(Model, Model.id == Task.model_id)
    return named.where(Model.tenant_id == tenant_id, Model.name == name)


def _ordered(rows: Select[Any], chosen: ListFilter) -> Select[Any]:
    if chosen.sort == "due":
        return rows.order_by(_request.due_at.is_(None), _request.due_at, _request.received_at, _request.id)
    if chosen.sort == "oldest":
        return rows.order_by(_request.received_at, _request.id)
    return rows.order_by(_request.received_at.desc(), _request.id.desc())


def _statuses(status: str) -> tuple[str, ...]:
    return OPEN if status == "open" else (status,)


def _due(due: str, at: int) -> list[ColumnElement[bool]]:
    is_open = _request.status.in_(OPEN)
    if due == "overdue":
        return [is_open, _request.due_at < at]
    if due == "missed":
        late = and_(_request.status == Status.COMPLETED, _request.completed_at > _request.due_at)
        return [or_(and_(is_open, _request.due_at < at), late)]
    return [is_open, _request.due_at.between(at, at + int(due) * DAY_SECONDS * SECOND)] if due else []


def _day(name: str, text: str) -> int | None:
    """Return the beginning of the day in microseconds since 1970; None for an empty text."""
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ApiProblem(422, "unknown_filter", f"The filter {name} is a date, such as 2026-01-31.") from None
    if not 1970 < day.year < 9998:
        raise ApiProblem(422, "unknown_filter", f"The filter {name} must lie between the years 1971 and 9997.")
    return moment(datetime.combine(day, time(), UTC))
