"""Unverified requests: accepted, then verified, rejected or withdrawn. Until then they change no model.

So do near misses, until a person has decided about their id (``spelling_decisions``).

Their suppression entries are written at once, so that duplicates are linked, but they are not in force: a stranger
must not keep a person out of a model, let alone delete the person.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, false, select, update
from sqlalchemy.orm import Session

from expunge_service.audit import record, recorded_at
from expunge_service.infra.tables import DeletionRequest, Model, SuppressionEntry
from expunge_service.requests.intake import (
    NOWHERE,
    Forgetter,
    Named,
    Reach,
    Windows,
    ask_about,
    generations_of,
    locked_forgetters,
    reach,
    tasks_of,
    why_nothing,
    write_tasks,
)
from expunge_service.requests.near_misses import look_up, written_of
from expunge_service.requests.reasons import Cause, Reason, stored
from expunge_service.requests.states import Status, awaits_decision, may_reject, may_verify, step
from expunge_service.requests.status import announce_requests, record_status
from expunge_service.requests.suppression import registered_after
from expunge_service.requests.webhooks import WebhookEvent


def verify(session: Session, request: DeletionRequest, windows: Windows) -> tuple[str, ...]:
    """Carry on with the request as intake would have; return the ids of models with work. Idempotent.

    Raises RequestRefused.
    """
    found = enforce(session, request, windows)
    if found is None:
        return ()
    names = sorted(name for _, name in found.places)
    record(session, request.tenant_id, "request.verified", request_id=request.id, models=names)
    announce_requests(session, (WebhookEvent.REQUEST_VERIFIED, request))
    if request.status != Status.QUEUED:
        record_status(session, request)
    session.flush()
    return found.to_notify


def enforce(session: Session, request: DeletionRequest, windows: Windows) -> Reach | None:
    """Put the suppression entries in force and make the tasks. Return None where it was verified before.

    The models' rows are locked before the request's, as everywhere. So no publication passes between matching and
    commit, and of two calls the second finds the request verified. Raises RequestRefused.
    """
    models = concerned(session, request)
    session.refresh(request, with_for_update=True)
    if not may_verify(Status(request.status), request.reason):
        return None
    asked = ask_about(session, request.tenant_id, written_of(session, request), models, waits=True)
    if asked.question is None:
        return go_on(session, request, models, windows, compared=asked.compared)
    mine = SuppressionEntry.request_id == request.id
    session.execute(update(SuppressionEntry).where(mine).values(lifted_reason=Reason.NEAR_MISS))
    request.near, request.reason = list(asked.question.near), Reason.NEAR_MISS
    request.facts = stored(Reason.NEAR_MISS, asked.question.facts)
    session.flush()
    return NOWHERE


def go_on(
    session: Session,
    request: DeletionRequest,
    models: Sequence[Forgetter],
    windows: Windows,
    *,
    compared: bool,
    others: bool = False,
) -> Reach:
    """Put the request's entries in force and make its tasks, in the locked models that it covers.

    ``compared``: other spellings of its ids were looked for. ``others``: some were found, and are other people's.
    """
    at = recorded_at(session)
    named = put_in_force(session, request, at)
    subjects = dict.fromkeys(named.subjects)
    matches = look_up(session, request.tenant_id, subjects, generations_of(models), named.samples)
    found = reach(session, models, named, windows, matches)
    write_tasks(session, tasks_of(request, found, at, windows))
    status: Status = Status.QUEUED
    reason: Reason | None = None
    facts: dict[str, Any] = {}
    if found.large:
        status, reason = Status.BLOCKED, Reason.LARGE
    elif not found.places:
        status = Status.COMPLETED
        reason, facts = why_nothing(session, request.tenant_id, named, models, request.models, compared=compared)
        if others and facts.get("cause") == Cause.COMPARED:
            facts |= {"cause": Cause.OTHER_PEOPLE}
    request.status, request.reason, request.facts = step(Status.BLOCKED, status), reason, stored(reason, facts)
    request.completed_at = at if status is Status.COMPLETED else None
    session.flush()
    return found


def concerned(session: Session, request: DeletionRequest) -> list[Forgetter]:
    """Return, locked, the models that it covers: those that it names, and those registered since it was accepted."""
    return locked_forgetters(session, request.tenant_id, *covered_by(request))


def covered_by(request: DeletionRequest) -> tuple[ColumnElement[bool], ...]:
    """Return the condition on the models that a request covers; none where it covers all."""
    if request.models is None:
        return ()
    since = false() if request.suppress_after is None else Model.id.in_(registered_after(request.suppress_after))
    return (Model.name.in_(request.models) | since,)


def put_in_force(session: Session, request: DeletionRequest, at: int) -> Named:
    """Let the request's suppression entries count from now on; return what they name."""
    mine = SuppressionEntry.request_id == request.id
    values = {"created_at": at, "lifted_at": None, "lifted_reason": None}
    session.execute(update(SuppressionEntry).where(mine).values(values))
    entries = session.execute(select(SuppressionEntry.subject_digest, SuppressionEntry.sample_digest).where(mine)).all()
    return Named(
        tuple(sorted(subject for subject, _ in entries if subject)),
        tuple(sorted(sample for _, sample in entries if sample)),
    )


def reject(session: Session, request: DeletionRequest, why: str) -> None:
    """Reject the request. Idempotent: the first ``why`` is kept. Raises RequestRefused.

    ``why`` is stored in the table and not in the audit log, because the log keeps all it gets.
    """
    session.refresh(request, with_for_update=True)
    if may_reject(Status(request.status), request.reason):
        _end(session, request, Status.REJECTED)
        request.rejection = why
        session.flush()


def withdraw(session: Session, request: DeletionRequest) -> bool:
    """Cancel the request if it still waits for a decision, without tasks; return whether it did. There is no window."""
    session.refresh(request, with_for_update=True)
    undecided = awaits_decision(Status(request.status), request.reason) or request.near is not None
    if undecided:
        request.near = None
        _end(session, request, Status.CANCELLED)
        session.flush()
    return undecided


def _end(session: Session, request: DeletionRequest, status: Status) -> None:
    request.status, request.reason = step(Status.BLOCKED, status), None
    record_status(session, request)
