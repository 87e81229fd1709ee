"""What happened to a request, and what proves it, for the API and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.certificates import Facts, ModelOutcome, erasing, records_of
from expunge_service.infra.tables import (
    AuditEntry,
    Certificate,
    DeletionRequest,
    Generation,
    HoldoutPerson,
    Model,
    PhaseSeconds,
    Task,
    Version,
)
from expunge_service.infra.time import instant
from expunge_service.requests import (
    Cause,
    Named,
    Reason,
    Status,
    accounts_of,
    foreseen_accounts,
    foreseen_records,
    how_compared,
    names_in,
    reason_of,
    stands,
    suppressed,
    unnamed_holdouts,
    zone_of,
)

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


def certificate_of(session: Session, request: DeletionRequest) -> Certificate | None:
    """Return the certificate of the request's present completion, signed or not. None: there is none."""
    return session.get(Certificate, (request.id, request.completed_at)) if request.completed_at else None


def is_erasing(session: Session, request: DeletionRequest) -> bool:
    """Return whether something that left with the request is not destroyed yet."""
    versions = select(Task.version_id).where(Task.request_id == request.id, Task.version_id.is_not(None))
    return bool(erasing(session, session.scalars(versions)))


def letter_facts(session: Session, row: DeletionRequest, named: Named | None = None) -> Facts:
    """Return what the tables say about a request that a letter may tell; moments in the zone of its deadlines.

    ``named``: the keyed digests of what it names, for a request that is not in the tables.
    """
    columns = select(Model.name, Task.reason, Version.number, Task.samples, Version.claim)
    tasks = columns.join(Model, Model.id == Task.model_id).outerjoin(Version, Version.id == Task.version_id)
    building = Generation.status.in_(("preparing", "candidate"))
    held_out = select(Model.name).join(HoldoutPerson, HoldoutPerson.generation_id == Model.generation_id)
    subjects, samples = names_in(session, row) if named is None else (named.subjects, named.samples)
    accounted = accounts_of if named is None else foreseen_accounts
    reason, known = reason_of(row.reason or ""), row.facts or {}
    causes = [(each or {}).get(Reason.IN_HOLDOUT, {}).get("cause") for each in _facts_of_parts(session, row) or [known]]
    zone = zone_of(row)
    moments = (row.due_at, row.first_due_at, row.completed_at)
    due, first, done = (None if at is None else instant(at).astimezone(zone) for at in moments)
    in_force = named is not None or stands(session, row)
    return Facts(
        status=Status(row.status),
        reason=reason,
        regulation=row.regulation,
        received=instant(row.received_at).astimezone(zone),
        due=due,
        first_due=first,
        completed=done,
        extended=row.extended_at is not None,
        rejection=row.rejection,
        limited_to=row.models,
        of_samples=not subjects,
        kept_out=suppressed(row.models, row.suppress_after) if in_force else None,
        parts=[
            ModelOutcome(name, reason_of(code or ""), number, samples or 0, claim)
            for name, code, number, samples, claim in session.execute(
                tasks.where(Task.request_id == row.id).order_by(Model.name)
            )
        ],
        accounts=accounted(session, row, subjects, samples),
        records=records_of(session, row.id) if named is None else foreseen_records(session, row, subjects, samples),
        searched=known.get(Reason.NO_MATCH, {}).get("searched"),
        compared=how_compared(row.reason, known),
        preparing=session.scalar(select(Generation.id).where(Generation.tenant_id == row.tenant_id, building).limit(1))
        is not None,
        holdouts=session.scalars(
            held_out.where(Model.tenant_id == row.tenant_id, HoldoutPerson.subject_digest.in_(subjects)).order_by(
                Model.name
            )
        ).all(),
        overwritten=all(cause == Cause.OVERWRITTEN for cause in causes),
        unnamed_holdouts=unnamed_holdouts(session, row),
        statement=None,
    )


def _facts_of_parts(session: Session, row: DeletionRequest) -> Sequence[dict[str, Any] | None]:
    mine = select(Task.facts).where(Task.request_id == row.id, Task.reason == Reason.IN_HOLDOUT)
    return session.scalars(mine).all()
