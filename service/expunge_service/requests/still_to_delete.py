"""What many tasks are still to delete, and the legal holds that keep some of it: a few statements for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from sqlalchemy import bindparam, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from expunge_service.infra.db import batches
from expunge_service.infra.tables import Generation, Hold, Membership, Removal
from expunge_service.requests.suppression import IN_FORCE_OF, concerns
from expunge_service.requests.tasks_with_models import ModelTask


def outstanding(session: Session, tasks: Collection[ModelTask]) -> dict[str, set[int]]:
    """Return the positions of the model's generation that each task is still to delete, by the task's id."""
    subjects: dict[tuple[int, str], list[str]] = {}
    samples: dict[tuple[int, str], list[str]] = {}
    for task, subject, sample in _named(session, tasks):
        named, name = (samples, sample or "") if subject is None else (subjects, subject)
        named.setdefault((task.generation_id or 0, name), []).append(task.id)
    positions: dict[str, set[int]] = {task.id: set() for task in tasks}
    for column, named in ((Membership.subject_digest, subjects), (Membership.sample_digest, samples)):
        for generation, name, position in _members(session, column, named):
            for task_id in named.get((generation, name), ()):
                positions[task_id].add(position)
    return positions


_HELD = tuple(
    select(Membership.generation_id, Hold.id, Membership.position)
    .join(Membership, same)
    .where(Membership.generation_id.in_(bindparam("generations", expanding=True)))
    .where(Hold.tenant_id == bindparam("tenant"), Hold.lifted_at.is_(None))
    for same in (Membership.subject_digest == Hold.subject_digest, Membership.sample_digest == Hold.sample_digest)
)


def holds_on(session: Session, tasks: Collection[ModelTask]) -> dict[str, list[str]]:
    """Return the ids of the holds in force that keep what each task is to delete, sorted, by the task's id."""
    held: dict[int | None, list[tuple[str, int]]] = {}
    for tenant in {task.tenant_id for task in tasks}:
        for generations in batches({task.generation_id or 0 for task in tasks if task.tenant_id == tenant}):
            for question in _HELD:
                rows = session.execute(question, {"tenant": tenant, "generations": generations})
                for generation, hold, position in rows:
                    held.setdefault(generation, []).append((hold, position))
    positions = outstanding(session, tasks)
    return {
        task.id: sorted({hold for hold, position in held.get(task.generation_id, ()) if position in positions[task.id]})
        for task in tasks
    }


def _named(session: Session, tasks: Collection[ModelTask]) -> Iterator[tuple[ModelTask, str | None, str | None]]:
    """Yield (task, subject, sample) of each entry in force of its request that covers its model."""
    registrations = cache(lambda: _registrations(session, tasks))
    by_request: dict[str, list[ModelTask]] = {}
    for task in tasks:
        by_request.setdefault(task.request_id, []).append(task)
    for ids in batches(by_request):
        for request_id, subject, sample, models, after in session.execute(IN_FORCE_OF, {"ids": ids}).all():
            for task in by_request[request_id]:
                # most requests name no model: only the others need the registration
                if models is None or concerns(models, after, task.model, registrations()[task.model_id]):
                    yield task, subject, sample


_REGISTRATIONS = (
    select(Generation.model_id, func.min(Generation.id))
    .where(Generation.model_id.in_(bindparam("models", expanding=True)))
    .group_by(Generation.model_id)
)


def _registrations(session: Session, tasks: Collection[ModelTask]) -> dict[str, int]:
    """Return the id of the first generation of each task's model; 0 where it has none."""
    first = {task.model_id: 0 for task in tasks}
    for models in batches(list(first)):
        first |= {model_id: generation for model_id, generation in session.execute(_REGISTRATIONS, {"models": models})}
    return first


_GONE = exists().where(Removal.generation_id == Membership.generation_id, Removal.position == Membership.position)


def _members(
    session: Session, column: InstrumentedAttribute[str], named: Collection[tuple[int, str]]
) -> Iterator[tuple[int, str, int]]:
    """Yield (generation, name, position) of those memberships of any of the generations and names that are not
    forgotten.
    """
    for generations in batches({generation for generation, _ in named}):
        for names in batches({name for _, name in named}):
            members = select(Membership.generation_id, column, Membership.position).where(
                Membership.generation_id.in_(generations), column.in_(names), ~_GONE
            )
            yield from ((row[0], row[1], row[2]) for row in session.execute(members))
