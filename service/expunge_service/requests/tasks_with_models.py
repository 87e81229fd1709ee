"""The tasks of requests with what their models' rows say, as named columns: a request may have a thousand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import bindparam, case, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches
from expunge_service.infra.tables import Model, Task, Version


class ModelTask(NamedTuple):
    """One model's part in a request."""

    id: str
    request_id: str
    tenant_id: str
    status: str
    reason: str | None
    facts: dict[str, Any] | None
    """None where there is no reason"""
    samples: int | None
    method: str | None
    version_id: str | None
    version: int | None
    """the number of the version that it was carried out with"""
    attempts: int
    not_before: int
    model_id: str
    model: str
    """the model's name"""
    model_status: str
    generation_id: int | None
    current_id: str | None
    due_at: int | None
    """the model's, as its row has it"""


_MODEL_TASKS = (
    select(Task.id, Task.request_id, Task.tenant_id, Task.status, Task.reason)
    .add_columns(case((Task.reason.is_not(None), Task.facts)))
    .add_columns(Task.samples, Task.method, Task.version_id, Version.number, Task.attempts, Task.not_before)
    .add_columns(Model.id, Model.name, Model.status, Model.generation_id, Model.current_id, Model.due_at)
    .join(Model, Model.id == Task.model_id)
    .outerjoin(Version, Version.id == Task.version_id)
    .where(Task.request_id.in_(bindparam("requests", expanding=True)))
    .order_by(Model.name)
)


def model_tasks(session: Session, requests: Iterable[str]) -> list[ModelTask]:
    """Return all tasks of these requests, those of each in the order of their models' names."""
    return [
        ModelTask._make(row) for some in batches(requests) for row in session.execute(_MODEL_TASKS, {"requests": some})
    ]
