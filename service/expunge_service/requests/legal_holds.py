"""Legal holds, and retrying blocked requests. A hold keeps a subject's or a sample's data in the models.

The workers read holds when they plan an update and again inside the publish transaction, under the model's row
lock. Placing a hold takes the same rows in share mode: either the publication sees the hold, or the hold sees the
publication.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from expunge_service.audit import record, seal_hold
from expunge_service.infra.db import NOW, now
from expunge_service.infra.pseudonyms import Pepper, new_id, sample_digest, subject_digest
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Generation,
    Hold,
    Membership,
    Model,
    Removal,
    Task,
    Version,
)
from expunge_service.requests import suppression
from expunge_service.requests.near_misses import Written
from expunge_service.requests.reasons import AT_ONCE, Reason, explain, reason_of
from expunge_service.requests.states import RequestRefused
from expunge_service.requests.status import locked_tasks, settle
from expunge_service.requests.still_to_delete import holds_on
from expunge_service.requests.tasks_with_models import model_tasks

_SERVED = ("preparing", "live", "exhausted")


def place_hold(
    session: Session, pepper: Pepper, tenant_id: str, *, subject_id: str | None, sample_id: str | None, reason: str
) -> Hold:
    """Place a hold on a subject or a sample. It may precede any request.

    Where everything that it would keep has been forgotten, it protects no data: see ``forgotten_already``.
    """
    _lock_served(session, tenant_id)
    hold = _hold(pepper, tenant_id, subject_id, sample_id)
    hold.id, hold.reason, hold.created_at = new_id(), reason, now(session)
    session.add(hold)
    record(session, tenant_id, "hold.placed", hold=hold.id, sealed=seal_hold(pepper, hold))
    return hold


def lift_hold(session: Session, hold: Hold) -> list[str]:
    """End a hold and retry all tasks that a hold blocks; return the ids of the models that have work. Idempotent.

    A worker that claims a task which another hold covers blocks it again.
    """
    if hold.lifted_at is not None:
        return []
    record(session, hold.tenant_id, "hold.lifted", hold=hold.id)
    return end_hold(session, hold, now(session))


def end_hold(session: Session, hold: Hold, at: int) -> list[str]:
    """Do what ``lift`` does at this moment (microseconds since 1970), without an audit entry."""
    hold.lifted_at = at
    blocked = (Task.status == "blocked", Task.reason == Reason.LEGAL_HOLD)
    return queue_again(session, locked_tasks(session, Task.tenant_id == hold.tenant_id, *blocked))


def retry(session: Session, request: DeletionRequest) -> list[str]:
    """Queue a blocked request's tasks again, with no attempts counted; return the ids of the models that have work.

    A task stays blocked where a retry cannot help: by a legal hold, its size, or an exhausted budget. Tasks that wait
    for a batch wait no longer. Raises RequestRefused, with the steps that do help, where a retry helps none of them.
    """
    tasks = locked_tasks(session, Task.request_id == request.id)
    stopped = [task for task in tasks if task.status == "blocked"]
    blocked = [task for task in stopped if _may_retry(task)]
    batched = [task for task in tasks if task.status == "queued" and task.reason == Reason.AWAITING_BATCH]
    if stopped and not (blocked or batched):
        raise _no_retry(session, request, stopped)
    if blocked or batched:
        record(session, request.tenant_id, "request.retried", request_id=request.id)
    models = queue_again(session, [*blocked, *batched])
    for task in batched:
        task.not_before = AT_ONCE
    return models


def _may_retry(task: Task) -> bool:
    """Return whether a retry may help. The reason of a newer worker is unknown here: there it may."""
    reason = reason_of(task.reason or "")
    return reason is None or reason.retry_helps


def _no_retry(session: Session, request: DeletionRequest, tasks: Sequence[Task]) -> RequestRefused:
    """Return the refusal of a retry, with the ways out of the first reason that blocks the request."""
    code = tasks[0].reason or ""
    alike = [task for task in model_tasks(session, [request.id]) if task.status == "blocked" and task.reason == code]
    holds: list[str] = []
    if code == Reason.LEGAL_HOLD:
        holds = sorted({hold for kept_by in holds_on(session, alike).values() for hold in kept_by})
    why = explain(code, request.id, [task.model for task in alike], holds)
    what = f"A retry cannot help. {why['title']} {why['remedy']['action']}"
    return RequestRefused(409, "retry_cannot_help", what, actions=why["actions"])


def approve(session: Session, request: DeletionRequest) -> list[str]:
    """Queue the request's tasks that are blocked for its size; return the ids of the models that have work."""
    blocked = (Task.status == "blocked", Task.reason == Reason.LARGE)
    waiting = locked_tasks(session, Task.request_id == request.id, *blocked)
    if waiting:
        record(session, request.tenant_id, "request.approved", request_id=request.id)
    return queue_again(session, waiting)


LARGE_AND_DUE = (Task.status == "blocked") & (Task.reason == Reason.LARGE) & (Task.not_before <= NOW)
"""whether a task was blocked for its size and its window is over"""


def retry_large(session: Session) -> list[str]:
    """Queue those tasks again; return the ids of the models that have work."""
    tasks = locked_tasks(session, LARGE_AND_DUE)
    for request_id, tenant_id in sorted({(task.request_id, task.tenant_id) for task in tasks}):
        record(session, tenant_id, "request.retried", request_id=request_id, why="window_over")
    return queue_again(session, tasks)


def queue_again(session: Session, tasks: Iterable[Task]) -> list[str]:
    """Let blocked tasks wait in the queue again, with no attempts counted; return the models that have work, by id.

    The models' rows are locked. Their work is due now, also where it waited for something else.
    """
    at = now(session)
    driven = list(tasks)
    for task in driven:
        task.status, task.reason, task.attempts, task.not_before = "queued", None, 0, at
    settle(session, [task.request_id for task in driven])
    models = sorted({task.model_id for task in driven})
    for model_id in models:
        session.get_one(Model, model_id).due_at = None
    return models


def _lock_served(session: Session, tenant_id: str) -> Sequence[Model]:
    """Lock and return the models that a hold can keep a person in, so that no publication passes before our commit."""
    models = select(Model).where(Model.tenant_id == tenant_id, Model.status.in_(_SERVED)).order_by(Model.id)
    return session.scalars(models.with_for_update(read=True)).all()


def forgotten_already(
    session: Session, pepper: Pepper, tenant_id: str, *, subject_id: str | None, sample_id: str | None
) -> list[tuple[str, int]]:
    """Return the models and versions that forgot everything that such a hold would keep; empty if anything is left.

    Only a caller who may search for people may see it. A hold placed in the same transaction finds the same.
    """
    models = _lock_served(session, tenant_id)
    wanted = _hold(pepper, tenant_id, subject_id, sample_id)
    found, kept = _updates(session, models, wanted)
    return [] if kept else sorted({*found, *_earlier(session, models, wanted)})


class Keeps(StrEnum):
    """What a hold keeps at the moment, of a hold that does not come after the deletion."""

    SAMPLES = "samples"
    """samples of a model that is served"""
    HELD_OUT = "held_out"
    """nothing: the person is in a holdout alone"""
    MAYBE = "maybe"
    """nothing that is known: no model that is served knows the id, and the samples of one in preparation are not known
    """
    NOTHING = "nothing"
    """nothing: no model knows the id"""


def keeps(session: Session, hold: Hold) -> Keeps:
    """Return what the hold keeps now. One that keeps nothing stands all the same: it may precede the data."""
    models = select(Model.generation_id).where(Model.tenant_id == hold.tenant_id)
    trained_on = select(Membership.position).where(
        Membership.generation_id.in_(models.where(Model.status.in_(_SERVED))), _names(hold)
    )
    if session.scalar(trained_on.limit(1)) is not None:
        return Keeps.SAMPLES
    subjects = [] if hold.subject_digest is None else [hold.subject_digest]
    if suppression.why_unknown(session, hold.tenant_id, subjects)[0] is Reason.IN_HOLDOUT:
        return Keeps.HELD_OUT
    building = select(Generation.id).where(
        Generation.tenant_id == hold.tenant_id, Generation.status.in_(("preparing", "candidate"))
    )
    return Keeps.NOTHING if session.scalar(building.limit(1)) is None else Keeps.MAYBE


def _hold(pepper: Pepper, tenant_id: str, subject_id: str | None, sample_id: str | None) -> Hold:
    return Hold(
        tenant_id=tenant_id,
        subject_digest=None if subject_id is None else subject_digest(pepper, tenant_id, subject_id),
        sample_digest=None if sample_id is None else sample_digest(pepper, tenant_id, sample_id),
        spelling=None if subject_id is None else Written.of(pepper, tenant_id, subject_id).to_json(),
    )


def _updates(session: Session, models: Iterable[Model], hold: Hold) -> tuple[list[tuple[str, int]], bool]:
    """Return the models and versions in which held samples were forgotten, and whether any sample is left."""
    updates: set[tuple[str, int]] = set()
    kept = False
    for model in models:
        rows = (
            select(Version.number)
            .select_from(Membership)
            .outerjoin(
                Removal,
                (Removal.generation_id == Membership.generation_id) & (Removal.position == Membership.position),
            )
            .outerjoin(Version, Version.id == Removal.version_id)
            .where(Membership.generation_id == model.generation_id, _names(hold))
            .distinct()
        )
        for number in session.scalars(rows):
            kept = kept or number is None
            if number is not None:
                updates.add((model.name, number))
    return sorted(updates), kept


def _earlier(session: Session, models: Iterable[Model], hold: Hold) -> list[tuple[str, int]]:
    """Return the versions in which ended generations forgot it, by the requests and, for samples, the audit log."""
    named = [hold.sample_digest] if hold.sample_digest is not None else []
    found = {
        (each.model, each.version)
        for each in suppression.carried_out(session, hold.tenant_id, hold.subject_digest, named)
    }
    names = {model.id: model.name for model in models}
    for digest in named:
        entries = select(AuditEntry.model_id, AuditEntry.body).where(
            AuditEntry.tenant_id == hold.tenant_id,
            AuditEntry.kind == "version.published",
            AuditEntry.body.contains(f'"{digest}"', autoescape=True),
        )
        for model_id, body in session.execute(entries):
            if model_id in names:
                found.add((names[model_id], int(json.loads(body)["number"])))
    return list(found)


def _names(hold: Hold) -> ColumnElement[bool]:
    if hold.subject_digest is not None:
        return Membership.subject_digest == hold.subject_digest
    return Membership.sample_digest == hold.sample_digest
