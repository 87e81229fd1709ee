"""Decide which work comes first: deletions, then units of preparations, then preparations.

A preparation may take hours, an update takes seconds, and one worker does one thing at a time. So a worker looks for
waiting deletions before it begins a preparation and after every unit of one. There it gives the preparation back.
What is done of it is kept, and a later claim continues it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge.service.audit.log import record
from expunge.service.infra.db import Database, now
from expunge.service.infra.tables import Generation, Model, Task
from expunge.service.infra.time import SECOND
from expunge.service.requests.reasons import NOT_FOR_AN_UPDATE
from expunge.workers.runtime.jobs import Preparation
from expunge.workers.runtime.lease import alive_at, fence, give_back, give_back_beside
from expunge.workers.runtime.work_units import models_with_free_pieces

PATIENCE_SECONDS = 0.5
"""A preparation is interrupted for a deletion that has waited this long. An idle worker would have taken it before."""


class Interrupted(Exception):
    """Stops a preparation between two units, because deletions wait."""


def waiting_deletions(
    session: Session, tenants: Collection[str] | None = None, patience_seconds: float = 0.0
) -> list[str]:
    """Return the ids of the live models with a deletion that a worker can take now, the longest waiting first.

    Args:
        session: reads the queue.
        tenants: the tenants that the worker serves; None: all.
        patience_seconds: only deletions that have been ready for this long.
    """
    at = now(session)
    since = at - int(patience_seconds * SECOND)
    query = (
        select(Task.model_id)
        .join(Model, Model.id == Task.model_id)
        .where(Model.status == "live", ~alive_at(Model, at), func.coalesce(Model.due_at, 0) <= at)
        .where(Task.status.in_(("queued", "running")), Task.not_before <= since)
        .where(func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE))
        .group_by(Task.model_id)
        .order_by(func.min(Task.not_before), Task.model_id)
    )
    if tenants is not None:
        query = query.where(Model.tenant_id.in_(sorted(tenants)))
    return list(session.scalars(query))


def before(
    database: Database, model_id: str, tenants: Collection[str] | None = None
) -> tuple[Sequence[str], str | None]:
    """Return what comes before a model's work: the models with waiting deletions, and a model with free units.

    Nothing comes before a waiting deletion of the model itself. Units come before preparations only. ``tenants``: the
    tenants that the worker serves; None: all.
    """
    with database.read() as session:
        deletions = waiting_deletions(session, tenants)
        if model_id in deletions:
            return (), None
        if session.scalar(select(Model.status).where(Model.id == model_id)) != "preparing":
            return deletions, None
        others = (each for each in models_with_free_pieces(session, tenants) if each != model_id)
        return deletions, next(others, None)


def give_way(database: Database, tenants: Collection[str] | None = None) -> None:
    """Stop a preparation between two units where deletions of ``tenants`` wait. Raises Interrupted."""
    with database.read() as session:
        if waiting_deletions(session, tenants, PATIENCE_SECONDS):
            raise Interrupted


def put_off(database: Database, job: Preparation) -> None:
    """Give an interrupted preparation back to any worker. It does not count as an attempt. Raises Stale, Busy."""
    with database.write() as session:
        model = fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        generation.attempts = max(0, generation.attempts - 1)
        record(session, job.tenant_id, "preparation.interrupted", model_id=model.id, generation=generation.id)
        if job.lease.name is None:
            give_back(model)
        else:
            give_back_beside(session, model.id)
