"""What is destroyed after a commit: keys, and the secret state of superseded versions. Every function is repeatable.

Workers do it after a heartbeat, the scheduler at its next tick, for the tenants whose stores they have. Nothing waits
for it but what says that it was done: certificates, letters and answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, or_, select, true, update
from sqlalchemy.orm import InstrumentedAttribute, aliased

from expunge_service.audit import Witness, record, recorded_at
from expunge_service.infra.db import NOW, Database, batches
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import (
    Certificate,
    Erasure,
    Generation,
    Model,
    Restoration,
    Task,
    TrainedPart,
    Version,
)
from expunge_service.infra.time import SECOND
from expunge_service.models import empty_generation
from expunge_workers.storage.key_store import KeyStore
from expunge_workers.storage.update_journal import confirm_committed

EMPTIED = "emptied"
STARTS = ("trained", "prepared", "in_parts")
"""notes of a generation's manifest that name a sealed state which work units start from"""
ERASED_AGAIN_SECONDS = 86_400.0
"""A worker that did not notice yet may make another key for a model that has ended: it is looked for this long."""


def erasures_wait(tenants: Collection[str] | None) -> ColumnElement[bool]:
    """Return the condition that ``erase_due`` has something to do."""
    return or_(_keys(tenants).exists(), _states(tenants).exists())


def erase_due(
    database: Database, private: Store, keys: KeyStore, witness: Witness, tenants: Collection[str] | None = None
) -> int:
    """Destroy every key whose erasure is due, delete the state of every superseded version; return how many of both.

    The versions that their people left with, and those that took the others' places, are released first, and that is
    durable. ``tenants`` own keys and states in these stores, None means all: a store that never held one must not
    report it as destroyed. Each is marked as gone only after it is. Raises Busy, KeysMissing, OSError.
    """
    with database.read() as session:
        due = session.execute(_keys(tenants).order_by(Erasure.id)).all()
        states = session.execute(_states(tenants)).all()
        if not due and not states:
            return 0
        successors = {row.successor for row in states} | {row.version_id for row in due}
        confirm_committed(session, witness, sorted(each for each in successors if each))
        current = select(Version.state).where(Version.status == "current")
        shared = {
            state
            for batch in batches(row.state for row in states)
            for state in session.scalars(current.where(Version.state.in_(batch)))
        }
    private.delete(*sorted({row.state for row in states} - shared))
    if due:
        keys.destroy(row.key_id for row in due)
    with database.write() as session:
        at = recorded_at(session)
        for batch in batches(row.id for row in states):
            session.execute(_DELETED, {"ids": batch, "at": at})
        gone: Counter[tuple[str, str | None]] = Counter()
        for batch in batches(row.id for row in due):
            marked = session.execute(_DESTROYED, {"ids": batch, "at": at, "overwritten": keys.overwrites_in_place})
            gone.update((tenant_id, version_id) for tenant_id, version_id in marked)
        for (tenant_id, version_id), count in gone.items():
            record(session, tenant_id, "keys.destroyed", version=version_id, count=count)
    database.truncate_log()
    return len(due) + len(states)


def _keys(tenants: Collection[str] | None) -> Select[*tuple[Any, ...]]:
    """Select the erasures that are due."""
    columns = select(Erasure.id, Erasure.key_id, Erasure.version_id)
    return columns.where(Erasure.destroyed_at.is_(None), _of(tenants, Erasure.tenant_id))


def _states(tenants: Collection[str] | None) -> Select[*tuple[Any, ...]]:
    """Select the versions that were replaced or retired and whose state is there still, and which replaced them."""
    columns = select(Version.id, Version.state, _NEXT.id.label("successor"))
    superseded = columns.outerjoin(_NEXT, (_NEXT.model_id == Version.model_id) & (_NEXT.parent_id == Version.id))
    return superseded.where(
        Version.state_deleted_at.is_(None), Version.retired_at.is_not(None), _of(tenants, Version.tenant_id)
    )


_NEXT = aliased(Version)
_DELETED = (
    update(Version.__table__)
    .where(Version.__table__.c.id.in_(bindparam("ids", expanding=True)))
    .values(state_deleted_at=bindparam("at"))
)
_DESTROYED = (
    update(Erasure.__table__)
    .where(Erasure.__table__.c.id.in_(bindparam("ids", expanding=True)), Erasure.__table__.c.destroyed_at.is_(None))
    .values(destroyed_at=bindparam("at"), in_place=bindparam("overwritten"))
    .returning(Erasure.__table__.c.tenant_id, Erasure.__table__.c.version_id)
)


def _of(tenants: Collection[str] | None, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    return true() if tenants is None else column.in_(sorted(tenants))


def ended_lately(tenants: Collection[str] | None) -> Select[Any]:
    """Return the generations of models that ended lately: id, manifest, and whether they have a version."""
    published = select(Version.id).where(Version.generation_id == Generation.id).exists()
    return (
        select(Generation.id, Generation.manifest, published)
        .join(Model, Model.id == Generation.model_id)
        .where(Model.status.in_(("retired", "cancelled")), Generation.status == "ended")
        .where(Generation.ended_at >= NOW - int(ERASED_AGAIN_SECONDS * SECOND), _of(tenants, Generation.tenant_id))
    )


_LEFT = select(TrainedPart.result).where(TrainedPart.generation_id == bindparam("generation"))


def erase_ended(database: Database, private: Store, keys: KeyStore, tenants: Collection[str] | None = None) -> int:
    """Destroy what the generations without a version leave of models that were retired or cancelled lately: every key,
    the state that their work units start from, and what those leave. Return how many generations were looked at.

    ``tenants`` as in ``erase_due``. Raises Busy, KeysMissing, OSError.
    """
    with database.read() as session:
        generations = session.execute(ended_lately(tenants)).all()
    for generation_id, manifest, has_version in generations:
        if has_version:
            continue
        notes = [(manifest or {}).get(name) for name in STARTS]
        with database.read() as session:
            left = session.scalars(_LEFT, {"generation": generation_id}).all()
        private.delete(*(note["state"] for note in notes if note), *map(str, left))
        keys.destroy_generation(generation_id)
    return len(generations)


def erase_lost(database: Database, keys: KeyStore) -> int:
    """Destroy the keys of generations that no database knows since a restore; return how many generations.

    They were begun after the backup that was put back. No key is destroyed before the operator has confirmed that
    backup. Raises Busy, KeysMissing, OSError.
    """
    with database.read() as session:
        confirmed = select(func.max(Restoration.last_generation)).where(Restoration.confirmed_at.is_not(None))
        last = session.scalar(confirmed)
        if last is None:
            return 0
        known = set(session.scalars(select(Generation.id).where(Generation.id <= last)))
    lost = {each for each in keys.generations() if each <= last} - known
    for generation_id in sorted(lost):
        keys.destroy_generation(generation_id)
    return len(lost)


_UNISSUED = (
    select(Certificate.request_id)
    .join(Task, Task.request_id == Certificate.request_id)
    .join(Version, Version.id == Task.version_id)
    .where(Certificate.issued_at.is_(None), Version.generation_id == Generation.id)
)
OVER = (
    select(Generation.id)
    .where(Generation.status.in_(("ended", "refused")), ~_UNISSUED.exists())
    .where(or_(Generation.phase.is_(None), Generation.phase != EMPTIED))
)
"""the generations that ended and were not emptied; one that a certificate must still commit to is kept"""


def delete_ended_generations(database: Database) -> int:
    """Delete what those generations still know about people; return how many generations."""
    with database.read() as session:
        over = session.scalars(OVER).all()
    for generation_id in over:
        with database.write() as session:
            empty_generation(session, generation_id)
            session.get_one(Generation, generation_id).phase = EMPTIED
    return len(over)
