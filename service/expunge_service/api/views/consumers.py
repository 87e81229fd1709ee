"""Consumers of models, for the API, the page and the metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from expunge_service.api.problems import not_found
from expunge_service.infra.db import now
from expunge_service.infra.tables import Consumer, Model, Version
from expunge_service.models import is_silent

_WORST_FIRST = ("unknown", "behind", "current")


@dataclass(frozen=True)
class ConsumerRow:
    """A consumer of a model: the version it said it serves, the current one, and when it was last heard."""

    name: str
    tenant: str
    model: str
    version: int
    current: int
    seen_at: int
    status: str
    """unknown (it has been silent for five minutes), behind or current"""


def consumer_rows(
    session: Session, tenant_id: str | None = None, models: Collection[str] | None = None
) -> list[ConsumerRow]:
    """Return the consumers of a tenant, or of the models with these ids, by their models' and their own names."""
    at = now(session)
    served, current = aliased(Version), aliased(Version)
    rows = (
        select(Consumer, Model.tenant_id, Model.name, served.number, current.number)
        .join(Model, Model.id == Consumer.model_id)
        .join(served, served.id == Consumer.version_id)
        .join(current, current.id == Model.current_id)
        .order_by(Model.tenant_id, Model.name, Consumer.name)
    )
    if tenant_id is not None:
        rows = rows.where(Model.tenant_id == tenant_id)
    if models is not None:
        rows = rows.where(Model.id.in_(models))
    return [
        ConsumerRow(
            each.name, tenant, model, number, newest, each.seen_at, _status(is_silent(each, at), number, newest)
        )
        for each, tenant, model, number, newest in session.execute(rows)
    ]


def worst_first(rows: Iterable[ConsumerRow]) -> list[ConsumerRow]:
    """Return those first that need a look: silent ones, then old ones. What a silent one serves is not known."""
    return sorted(rows, key=lambda each: (_WORST_FIRST.index(each.status), each.seen_at, each.model, each.name))


def find_consumer(session: Session, model: Model, name: str) -> Consumer:
    """Return a consumer of the model. Raises ApiProblem (404)."""
    row = session.get(Consumer, (model.id, name))
    if row is None:
        raise not_found("consumer")
    return row


def _status(silent: bool, number: int, newest: int) -> str:
    if silent:
        return "unknown"
    return "behind" if number < newest else "current"
