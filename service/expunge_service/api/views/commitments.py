"""What the tables say now of what versions and requests commit to, to be compared with the audit log."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.api.problems import not_found
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.tables import (
    BudgetEntry,
    DeletionRequest,
    Generation,
    Model,
    SuppressionEntry,
    Task,
    Version,
)
from expunge_service.models import SERVED, committed_in_full
from expunge_service.requests import entries_digest, positions

OPEN = ("queued", "running", "blocked")


class CommitmentsView(BaseModel):
    """A served model's current version, as the tables have it now. Every digest is keyed: it tells of no person."""

    model: str
    version: str = Field(description="id of the current version")
    number: int
    generation: int
    state_sha256: str
    spent: int = Field(description="units of 1e-12 mu^2, by the ledger; the smaller where the generation says less")
    commitments: dict[str, str] = Field(description="by table: a keyed digest of what it says of the version")


class SuppressionsView(BaseModel):
    """A request's suppression entries, as the table has them now."""

    request: str
    digest: str = Field(description="keyed; of all of the request's entries, in force or not")
    in_force: bool = Field(description="whether all of them are")
    undone: list[str] = Field(description="served models that hold what they name, and whose task is not open")


def commitments_view(session: Session, pepper: Pepper, model: Model) -> CommitmentsView:
    """Return what the tables say. Every membership is read. Raises ApiProblem (404) where no version is served."""
    version = session.get(Version, model.current_id or "")
    generation = session.get(Generation, model.generation_id or 0)
    if version is None or generation is None:
        raise not_found("version")
    ledger = select(func.sum(BudgetEntry.budget_cost)).where(BudgetEntry.generation_id == generation.id)
    return CommitmentsView(
        model=model.name,
        version=version.id,
        number=version.number,
        generation=generation.id,
        state_sha256=version.state,
        spent=min(generation.spent, session.scalar(ledger) or 0),
        commitments=dict(committed_in_full(session, pepper, generation).tables),
    )


def suppression_views(
    session: Session, pepper: Pepper, tenant_id: str, after: tuple[int, str] | None, limit: int
) -> tuple[Sequence[DeletionRequest], list[SuppressionsView]]:
    """Return the tenant's requests after this one, oldest first, and what the table says of each."""
    place = DeletionRequest.created_at, DeletionRequest.id
    query = select(DeletionRequest).where(DeletionRequest.tenant_id == tenant_id).order_by(*place).limit(limit)
    if after is not None:
        later = (place[0] > after[0]) | ((place[0] == after[0]) & (place[1] > after[1]))
        query = query.where(later)
    found = session.scalars(query).all()
    columns = SuppressionEntry.request_id, SuppressionEntry.subject_digest, SuppressionEntry.sample_digest
    rows = select(*columns, SuppressionEntry.lifted_at)
    entries: dict[str, list[tuple[str | None, str | None]]] = {each.id: [] for each in found}
    lifted: set[str] = set()
    for request, subject, sample, lifted_at in session.execute(rows.where(columns[0].in_(entries))):
        entries[request].append((subject, sample))
        lifted |= {request} if lifted_at is not None else set()
    undone = _undone(session, tenant_id, list(entries))
    views = [
        SuppressionsView(
            request=each.id,
            digest=entries_digest(pepper, each.id, entries[each.id]),
            in_force=each.id not in lifted,
            undone=undone[each.id],
        )
        for each in found
    ]
    return found, views


def _undone(session: Session, tenant_id: str, requests: Sequence[str]) -> dict[str, list[str]]:
    """Return, by request, the served models that hold what it names although no open task is to delete it there."""
    tasks = select(Task.request_id, Task.model_id).where(Task.request_id.in_(requests), Task.status.in_(OPEN))
    waiting = {(request, model) for request, model in session.execute(tasks)}
    served = select(Model).where(Model.tenant_id == tenant_id, Model.status.in_(SERVED)).order_by(Model.name)
    found: dict[str, list[str]] = {request: [] for request in requests}
    for model in session.scalars(served):
        for request in positions(session, tenant_id, model.name, model.generation_id or 0, requests):
            if (request, model.id) not in waiting:
                found[request].append(model.name)
    return found
