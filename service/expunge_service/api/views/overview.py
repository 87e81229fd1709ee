"""The tenant's requests as the overview counts and draws them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.api.views.requests import DeletionRequestView, request_views
from expunge_service.api.views.selection import OPEN, ListFilter, count
from expunge_service.infra.db import now
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Generation, Model
from expunge_service.infra.time import DAY_SECONDS, SECOND

_RECENT = 10
_ENDINGS = ("request.completed", "request.cancelled", "request.rejected")
_DAY = DAY_SECONDS * SECOND
_WEEK = 7 * _DAY


@dataclass(frozen=True)
class OpenRequests:
    """What needs an operator: counts over the tenant's open requests."""

    open: int
    held: int
    overdue: int
    due_soon: int
    oldest_seconds: float | None


FIGURES = {
    "overdue": ListFilter(due="overdue", sort="due"),
    "due_soon": ListFilter(due="7", sort="due"),
    "held": ListFilter(status="blocked", sort="due"),
    "open": ListFilter(status="open", sort="due"),
}
"""the list that each tile counts and leads to"""


def figures(session: Session, tenant_id: str) -> OpenRequests:
    at = now(session)
    counts = {name: count(session, chosen, tenant_id, at) for name, chosen in FIGURES.items()}
    first = select(func.min(DeletionRequest.received_at))
    oldest = session.scalar(first.where(DeletionRequest.tenant_id == tenant_id, DeletionRequest.status.in_(OPEN)))
    return OpenRequests(**counts, oldest_seconds=None if oldest is None else max(0.0, (at - oldest) / SECOND))


def retrains(session: Session, tenant_id: str) -> list[tuple[str, int | None]]:
    """Return the models that are trained again and when each is ready; None: no training of it was ever timed.

    Moments are in microseconds since 1970.
    """
    rows = select(Model, Generation).join(Generation, Generation.model_id == Model.id)
    candidates = rows.where(Model.tenant_id == tenant_id, Generation.status == "candidate").order_by(Model.name)
    found = []
    for model, generation in session.execute(candidates):
        seconds = (generation.report or {}).get("eta_seconds")
        found.append((model.name, None if seconds is None else generation.created_at + int(float(seconds) * SECOND)))
    return found


def recent(session: Session, tenant_id: str) -> list[tuple[DeletionRequestView, int]]:
    """Return the requests that ended last and have not been opened again, with the moment; the latest first.

    Moments are in microseconds since 1970.
    """
    ended: dict[str, AuditEntry] = {}
    for entry in sorted(_endings(session, tenant_id), key=lambda each: each.id, reverse=True):
        ended.setdefault(entry.request_id or "", entry)
    rows = select(DeletionRequest).where(DeletionRequest.id.in_(ended), DeletionRequest.status.not_in(OPEN))
    found = sorted(session.scalars(rows).all(), key=lambda each: ended[each.id].id, reverse=True)[:_RECENT]
    return [(each, ended[each.id].created_at) for each in request_views(session, found)]


def _endings(session: Session, tenant_id: str) -> Iterator[AuditEntry]:
    """Yield the newest entries of each kind that ends a request. One query for each kind reads its index backwards."""
    for kind in _ENDINGS:
        newest = (
            select(AuditEntry)
            .where(AuditEntry.kind == kind, AuditEntry.tenant_id == tenant_id)
            .order_by(AuditEntry.id.desc())
            .limit(2 * _RECENT)
        )
        yield from session.scalars(newest)


def deadlines(session: Session, tenant_id: str, at: int) -> dict[int, int]:
    """Return how many open requests are due on each day of the next 45, by the number of days since 1970."""
    day = DeletionRequest.due_at // _DAY
    rows = select(day, func.count()).where(*ListFilter(due="45").conditions(tenant_id, at)).group_by(day)
    return {int(place or 0): many for place, many in session.execute(rows)}


def latency(session: Session, tenant_id: str, at: int) -> list[tuple[int, float, float]]:
    """Return, for each of the last twelve weeks, its begin and how long requests took: median and 95th percentile.

    The times are in seconds, of the newest ten thousand requests that were completed.
    """
    done = (
        select(DeletionRequest.received_at, DeletionRequest.completed_at)
        .where(DeletionRequest.tenant_id == tenant_id, DeletionRequest.completed_at > at - 12 * _WEEK)
        .order_by(DeletionRequest.completed_at.desc())
        .limit(10_000)
    )
    taken: dict[int, list[float]] = {}
    for received_at, ended_at in session.execute(done):
        completed_at = int(ended_at or 0)
        begin = at - (at - completed_at) // _WEEK * _WEEK - _WEEK
        taken.setdefault(begin, []).append(max(0.0, (completed_at - received_at) / SECOND))
    return [(begin, *percentiles(seconds)) for begin, seconds in sorted(taken.items())]


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile by the nearest rank. There is at least one value."""
    ordered = sorted(values)
    return tuple(ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))  # type: ignore[return-value]
