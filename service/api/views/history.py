"""What happened to a request, and what proves it, for the API and the page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.certificates import Facts, ModelOutcome, erasing
from expunge.service.infra.db import now
from expunge.service.infra.tables import (
    AuditEntry,
    Certificate,
    DeletionRequest,
    Generation,
    HoldoutPerson,
    Model,
    PhaseSeconds,
    SuppressionEntry,
    Task,
    Version,
)
from expunge.service.infra.time import instant
from expunge.service.requests import Cause, Reason, Status, reason_of, stands, suppressed

_ORDER = {"request.accepted": 0, "version.published": 1, "request.completed": 2, "certificate.issued": 3}
"""of what is written in one transaction, and so at one moment"""
_PHASES = {"unlearn": "forget, refine and certify", "store": "write"}
"""forgetting, refining and certifying are one duration: their own would tell how many iterations an update took"""


@dataclass(frozen=True)
class TimelineEntry:
    at: int
    kind: str
    detail: str
    log_index: int | None


def timeline(session: Session, request: DeletionRequest) -> list[TimelineEntry]:
    """Return a request's history, oldest first: log entries, the updates that served it, the certificate."""
    entries = select(AuditEntry).where(AuditEntry.request_id == request.id, AuditEntry.tenant_id == request.tenant_id)
    logged = entries.where(AuditEntry.kind != "certificate.issued")  # its certificate is there itself
    found = [TimelineEntry(entry.created_at, entry.kind, "", entry.log_index) for entry in session.scalars(logged)]
    updates = (
        select(Model.name, Version.number, Version.published_at, Task.method, Task.samples)
        .join(Task, Task.version_id == Version.id)
        .join(Model, Model.id == Version.model_id)
        .where(Task.request_id == request.id)
    )
    for name, number, at, method, samples in session.execute(updates):
        detail = f"version {number} of {name}: {samples} samples forgotten by {method}"
        found.append(TimelineEntry(at, "version.published", detail, None))
    issued = select(Certificate.issued_at).where(
        Certificate.request_id == request.id, Certificate.issued_at.is_not(None)
    )
    found += [TimelineEntry(at or 0, "certificate.issued", "", None) for at in session.scalars(issued)]
    return sorted(found, key=lambda each: (each.at, _ORDER.get(each.kind, 1)))


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


def certificate_of(session: Session, request: DeletionRequest) -> Certificate | None:
    """Return the certificate of the request's present completion, signed or not. None: there is none."""
    return session.get(Certificate, (request.id, request.completed_at)) if request.completed_at else None


def is_erasing(session: Session, request: DeletionRequest) -> bool:
    """Return whether something that left with the request is not destroyed yet."""
    versions = select(Task.version_id).where(Task.request_id == request.id, Task.version_id.is_not(None))
    return bool(erasing(session, session.scalars(versions)))


def letter_facts(session: Session, row: DeletionRequest, named: Collection[str] | None = None) -> Facts:
    """Return what the tables say about a request that a letter may tell.

    ``named``: the keyed digests of the person's ids, for a request that is not in the tables.
    """
    columns = select(Model.name, Task.reason, Version.number, Task.samples).join(Model, Model.id == Task.model_id)
    tasks = columns.outerjoin(Version, Version.id == Task.version_id).where(Task.request_id == row.id)
    building = Generation.status.in_(("preparing", "candidate"))
    held_out = select(Model.name).join(HoldoutPerson, HoldoutPerson.generation_id == Model.generation_id)
    asked = select(SuppressionEntry.subject_digest).where(SuppressionEntry.request_id == row.id)
    in_table = named is None
    if named is None:
        named = [each for each in session.scalars(asked) if each is not None]
    reason, known = reason_of(row.reason or ""), row.facts or {}
    causes = [(each or {}).get(Reason.IN_HOLDOUT, {}).get("cause") for each in _facts_of_parts(session, row) or [known]]
    due, first, done = (None if at is None else instant(at) for at in (row.due_at, row.first_due_at, row.completed_at))
    return Facts(
        status=Status(row.status),
        reason=reason,
        regulation=row.regulation,
        received=instant(row.received_at),
        due=due,
        first_due=first,
        completed=done,
        extended=row.extended_at is not None,
        rejection=row.rejection,
        limited_to=row.models,
        of_samples=not named,
        kept_out=None if in_table and not stands(session, row) else suppressed(row.models, row.suppress_after),
        parts=[
            ModelOutcome(name, reason_of(code or ""), number, samples or 0)
            for name, code, number, samples in session.execute(tasks.order_by(Model.name))
        ],
        searched=known.get(Reason.NO_MATCH, {}).get("searched"),
        preparing=session.scalar(select(Generation.id).where(Generation.tenant_id == row.tenant_id, building).limit(1))
        is not None,
        holdouts=session.scalars(
            held_out.where(Model.tenant_id == row.tenant_id, HoldoutPerson.subject_digest.in_(named)).order_by(
                Model.name
            )
        ).all(),
        overwritten=all(cause == Cause.OVERWRITTEN for cause in causes),
        statement=None,
    )


def _facts_of_parts(session: Session, row: DeletionRequest) -> Sequence[dict[str, Any] | None]:
    mine = select(Task.facts).where(Task.request_id == row.id, Task.reason == Reason.IN_HOLDOUT)
    return session.scalars(mine).all()
