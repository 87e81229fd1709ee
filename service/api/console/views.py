"""What the pages show, read from the database in one transaction each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from expunge.service.access.api_keys import Caller
from expunge.service.api.console import charts, plots
from expunge.service.api.console.selection import OPEN, ROWS, ListFilter, count
from expunge.service.api.request_views import DeletionRequestView, views
from expunge.service.audit.log import newest_head
from expunge.service.audit.self_check import EVERY_SECONDS
from expunge.service.infra.db import now
from expunge.service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    Certificate,
    Consumer,
    DeletionRequest,
    Generation,
    Heartbeat,
    LogCheck,
    Model,
    PhaseSeconds,
    Task,
    Version,
)
from expunge.service.infra.time import DAY_SECONDS, HOUR_SECONDS, SECOND
from expunge.service.models.consumers import SILENT_SECONDS, standing
from expunge.service.requests.reasons import Reason
from unlearning.accounting.budget import epsilon_of, updates_left

_WORST_FIRST = ("silent", "behind", "current")
_LOW = 0.8
_RECENT = 10
_ENDINGS = ("request.completed", "request.cancelled", "request.rejected")
_ORDER = {"request.accepted": 0, "version.published": 1, "request.completed": 2, "certificate.issued": 3}
"""of what is written in one transaction, and so at one moment"""


@dataclass(frozen=True)
class Gauge:
    """A generation's budget. ``share`` of it is spent, 0 to 1, in mu squared; ``level`` is ok, low or out."""

    share: float
    level: str
    left: int | None
    epsilon_spent: float | None
    epsilon_limit: float | None
    delta: float | None
    arc: str


@dataclass(frozen=True)
class ModelRow:
    model: Model
    generation: Generation | None
    head: Version | None
    gauge: Gauge | None
    waiting: int
    consumers: dict[str, int]
    """current, behind, unknown: how many"""


@dataclass(frozen=True)
class OpenRequests:
    """What needs an operator: counts over the tenant's open requests."""

    open: int
    held: int
    overdue: int
    due_soon: int
    oldest_seconds: float | None


@dataclass(frozen=True)
class ConsumerRow:
    """A consumer of a model: the version it said it serves, the current one, and when it was last heard."""

    name: str
    model: str
    version: int
    current: int | None
    seen_at: int
    status: str
    """silent, behind or current"""


@dataclass(frozen=True)
class Happening:
    at: int
    kind: str
    detail: str
    log_index: int | None


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


def model_rows(session: Session, tenant_id: str, after: str = "") -> list[ModelRow]:
    """Return the tenant's models by name, after the name ``after``, and one more than a page shows if there is one."""
    rows = (
        select(Model, Generation, Version)
        .outerjoin(Generation, Generation.id == Model.generation_id)
        .outerjoin(Version, Version.id == Model.current_id)
        .where(Model.tenant_id == tenant_id, Model.name > after)
        .order_by(Model.name)
        .limit(ROWS + 1)
    )
    found = session.execute(rows).all()
    waiting = _waiting(session, [model.id for model, _, _ in found])
    return [_model_row(session, *row, waiting.get(row[0].id, 0)) for row in found]


def model_row(session: Session, model: Model) -> ModelRow:
    generation = session.get(Generation, model.generation_id) if model.generation_id else None
    head = session.get(Version, model.current_id) if model.current_id else None
    return _model_row(session, model, generation, head, _waiting(session, [model.id]).get(model.id, 0))


def _waiting(session: Session, models: list[str]) -> dict[str, int]:
    counts = select(Task.model_id, func.count()).where(Task.model_id.in_(models), Task.status.in_(OPEN))
    return {model: count for model, count in session.execute(counts.group_by(Task.model_id))}


def _model_row(
    session: Session, model: Model, generation: Generation | None, head: Version | None, waiting: int
) -> ModelRow:
    counts = {"current": 0, "behind": 0, "unknown": 0}
    for each in standing(session, model, head) if head else ():
        counts[each["status"]] += 1
    return ModelRow(model, generation, head, gauge(generation) if generation and head else None, waiting, counts)


def gauge(generation: Generation) -> Gauge | None:
    """Return the budget's figures. None: the guarantee has no budget, or updates cost nothing."""
    if generation.budget is None or generation.budget_cost == 0:
        return None
    share = generation.spent / generation.budget if generation.budget else 1.0
    left = updates_left(generation.spent, generation.budget, generation.budget_cost)
    level = "out" if left == 0 else "low" if share > _LOW else "ok"
    spent = None if generation.delta is None else epsilon_of(generation.spent, generation.delta)
    return Gauge(share, level, left, spent, generation.epsilon, generation.delta, plots.arc(share))


def queue(session: Session, tenant_id: str, scopes: Collection[str]) -> list[DeletionRequestView]:
    """Return the open requests, the nearest deadline first. Those without a deadline follow, oldest first."""
    rows = (
        select(DeletionRequest)
        .where(DeletionRequest.tenant_id == tenant_id, DeletionRequest.status.in_(OPEN))
        .order_by(DeletionRequest.due_at.is_(None), DeletionRequest.due_at, DeletionRequest.received_at)
        .limit(ROWS)
    )
    return views(session, session.scalars(rows).all(), scopes)


def recent(session: Session, tenant_id: str) -> list[tuple[DeletionRequestView, int]]:
    """Return the requests that ended last and have not been opened again, with the moment; the latest first.

    Moments are in microseconds since 1970.
    """
    ended: dict[str, AuditEntry] = {}
    for entry in sorted(_endings(session, tenant_id), key=lambda each: each.id, reverse=True):
        ended.setdefault(entry.request_id or "", entry)
    rows = select(DeletionRequest).where(DeletionRequest.id.in_(ended), DeletionRequest.status.not_in(OPEN))
    found = sorted(session.scalars(rows).all(), key=lambda each: ended[each.id].id, reverse=True)[:_RECENT]
    return [(each, ended[each.id].created_at) for each in views(session, found)]


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


def timeline(session: Session, request: DeletionRequest) -> list[Happening]:
    """Return a request's history, oldest first: log entries, the updates that served it, the certificate."""
    entries = select(AuditEntry).where(AuditEntry.request_id == request.id, AuditEntry.tenant_id == request.tenant_id)
    logged = entries.where(AuditEntry.kind != "certificate.issued")  # its certificate is there itself
    found = [Happening(entry.created_at, entry.kind, "", entry.log_index) for entry in session.scalars(logged)]
    updates = (
        select(Model.name, Version.number, Version.published_at, Task.method, Task.samples)
        .join(Task, Task.version_id == Version.id)
        .join(Model, Model.id == Version.model_id)
        .where(Task.request_id == request.id)
    )
    for name, number, at, method, samples in session.execute(updates):
        detail = f"version {number} of {name}: {samples} samples forgotten by {method}"
        found.append(Happening(at, "version.published", detail, None))
    issued = select(Certificate.issued_at).where(
        Certificate.request_id == request.id, Certificate.issued_at.is_not(None)
    )
    found += [Happening(at or 0, "certificate.issued", "", None) for at in session.scalars(issued)]
    return sorted(found, key=lambda each: (each.at, _ORDER.get(each.kind, 1)))


_PHASES = {"unlearn": "forget, refine and certify", "store": "write"}
"""forgetting, refining and certifying are one duration: their own would tell how many iterations an update took"""


def phases(session: Session, request: DeletionRequest) -> dict[str, list[tuple[str, float]]]:
    """Return, by model, the phases of the update that served the request: name, and seconds that it took at most."""
    rows = (
        select(Model.name, PhaseSeconds.phase, PhaseSeconds.seconds)
        .join(Task, Task.version_id == PhaseSeconds.version_id)
        .join(Model, Model.id == Task.model_id)
        .where(Task.request_id == request.id)
        .order_by(PhaseSeconds.id)
    )
    found: dict[str, list[tuple[str, float]]] = {}
    for model, phase, seconds in session.execute(rows):
        found.setdefault(model, []).append((_PHASES.get(phase, phase), seconds))
    return found


def window_ends(session: Session, request: DeletionRequest) -> int | None:
    """Return when the request's cancel window ends. None: it is over (``expunge.service.requests.cancel`` decides)."""
    columns = select(Task.status, Task.not_before)
    tasks = session.execute(columns.where(Task.request_id == request.id)).all()
    waiting = ("queued", "blocked") if request.reason == Reason.LARGE else ("queued",)
    if not tasks or any(task.status not in waiting for task in tasks):
        return None
    ends = min(task.not_before for task in tasks)
    return int(ends) if ends > now(session) else None


def has_certificate(session: Session, request: DeletionRequest) -> bool:
    return certificate(session, request) is not None


def certificate(session: Session, request: DeletionRequest) -> str | None:
    """Return the envelope for the request's present completion. None: it is not issued yet, or there is none."""
    row = session.get(Certificate, (request.id, request.completed_at)) if request.completed_at else None
    return row.envelope if row else None


def versions(session: Session, model: Model) -> list[Version]:
    """Return the model's versions, newest first."""
    rows = select(Version).where(Version.model_id == model.id).order_by(Version.number.desc()).limit(ROWS)
    return list(session.scalars(rows))


def budget_plot(session: Session, generation: Generation, words: str) -> plots.Plot | None:
    """Draw the updates left over time, from the newest thousand charges. None: nothing limits them."""
    if not generation.budget or not generation.budget_cost:
        return None
    newest = (
        select(BudgetEntry.created_at, BudgetEntry.budget_cost)
        .where(BudgetEntry.generation_id == generation.id)
        .order_by(BudgetEntry.id.desc())
        .limit(1000)
    )
    rows = list(reversed(session.execute(newest).all()))
    spent = generation.spent - sum(cost for _, cost in rows)
    changes = [(generation.created_at, updates_left(spent, generation.budget, generation.budget_cost) or 0)]
    for at, cost in rows:
        spent += cost
        changes.append((at, updates_left(spent, generation.budget, generation.budget_cost) or 0))
    return charts.updates_left(changes, now(session), words)


def forecast(session: Session, generation: Generation) -> str:
    """Write in words how long the budget lasts, at the pace of the last four weeks or of the generation's life."""
    at = now(session)
    since = max(generation.created_at, at - 4 * 7 * DAY_SECONDS * SECOND)
    charges = select(func.count()).where(
        BudgetEntry.generation_id == generation.id, BudgetEntry.budget_cost > 0, BudgetEntry.created_at >= since
    )
    left = updates_left(generation.spent, generation.budget, generation.budget_cost)
    return charts.forecast(left, session.scalar(charges) or 0, (at - since) / SECOND, at)


def deadlines_plot(session: Session, tenant_id: str) -> plots.Plot | None:
    """Draw the deadlines of the open requests in the next 45 days."""
    at = now(session)
    day = DeletionRequest.due_at // charts.DAY
    rows = select(day, func.count()).where(*ListFilter(due="45").conditions(tenant_id, at)).group_by(day)
    counts = {int(place or 0): many for place, many in session.execute(rows)}
    return charts.deadlines(counts, count(session, FIGURES["overdue"], tenant_id, at), at)


def latency_plot(session: Session, tenant_id: str) -> plots.Plot | None:
    """Draw how long requests took in the last twelve weeks, from the newest ten thousand that were completed."""
    at = now(session)
    week = charts.WEEK_DAYS * charts.DAY
    done = (
        select(DeletionRequest.received_at, DeletionRequest.completed_at)
        .where(DeletionRequest.tenant_id == tenant_id, DeletionRequest.completed_at > at - 12 * week)
        .order_by(DeletionRequest.completed_at.desc())
        .limit(10_000)
    )
    taken: dict[int, list[float]] = {}
    for received_at, ended_at in session.execute(done):
        completed_at = int(ended_at or 0)
        begin = at - (at - completed_at) // week * week - week
        taken.setdefault(begin, []).append(max(0.0, (completed_at - received_at) / SECOND))
    return charts.latency([(begin, *percentiles(seconds)) for begin, seconds in sorted(taken.items())])


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile by the nearest rank. There is at least one value."""
    ordered = sorted(values)
    return tuple(ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))  # type: ignore[return-value]


def consumer_rows(session: Session, tenant_id: str, model: Model | None = None) -> list[ConsumerRow]:
    """Return the consumers of a model or of all, those first that need a look: silent ones, then old ones.

    A silent one is worse: nobody knows what it serves.
    """
    since = now(session) - SILENT_SECONDS * SECOND
    served, current = aliased(Version), aliased(Version)
    rows = (
        select(Consumer, Model.name, served.number, current.number)
        .join(Model, Model.id == Consumer.model_id)
        .join(served, served.id == Consumer.version_id)
        .outerjoin(current, current.id == Model.current_id)
        .where(Model.tenant_id == tenant_id)
    )
    if model is not None:
        rows = rows.where(Model.id == model.id)
    found = []
    for consumer, name, number, newest in session.execute(rows):
        status = "silent" if consumer.seen_at < since else "behind" if number < (newest or 0) else "current"
        found.append(ConsumerRow(consumer.name, name, number, newest, consumer.seen_at, status))
    return sorted(found, key=lambda each: (_WORST_FIRST.index(each.status), each.seen_at, each.model, each.name))


def processes(session: Session, lease_seconds: float) -> list[dict[str, Any]]:
    """Return the workers and schedulers that sent a heartbeat in the last hour, the living first."""
    at = now(session)
    rows = select(Heartbeat).where(Heartbeat.beat_at > at - HOUR_SECONDS * SECOND).order_by(Heartbeat.beat_at.desc())
    return [
        {
            "row": row,
            "silent_seconds": max(0.0, (at - row.beat_at) / SECOND),
            "alive": row.beat_at >= at - int(lease_seconds * SECOND),
        }
        for row in session.scalars(rows.limit(ROWS))
    ]


def log_state(session: Session, last: LogCheck | None = None) -> dict[str, Any]:
    """Return what a check of the audit log found, and how many ``entries`` it has now; by default the scheduler's last.

    ``size``: the first entries of the log, which were verified.
    """
    last, head = last or session.get(LogCheck, 1), newest_head(session)
    waiting = session.scalar(select(func.count()).where(AuditEntry.log_index.is_(None))) or 0
    entries = (0 if head is None else head.size) + waiting
    state: dict[str, Any] = {"size": 0, "entries": entries, "checked_at": None, "fault": None}
    if last is None or (last.note is None and last.fault is None):
        return state | {"status": "empty" if head is None else "not checked yet"}
    state |= {"size": last.size, "checked_at": last.checked_at, "fault": last.fault}
    late = now(session) - last.checked_at > 2 * EVERY_SECONDS * SECOND
    return state | {"status": "tampered" if last.fault else "not checked lately" if late else "verified"}


def is_busy(caller: Caller, figures: OpenRequests | None, rows: list[ModelRow]) -> bool:
    """Return whether something is under way that ends without an event: an update or a preparation."""
    preparing = any(row.model.status == "preparing" for row in rows)
    return preparing or (figures is not None and figures.open > figures.held and "deletions:read" in caller.scopes)
