"""What is destroyed after a commit: keys, and the secret state of superseded versions. Every function is repeatable.

The worker does it right after its commit. The scheduler repeats it for workers that died before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Select, func, or_, select, true, update
from sqlalchemy.orm import InstrumentedAttribute

from expunge.service.audit import Witness, record, recorded_at
from expunge.service.infra.db import NOW, Database, batches
from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Store
from expunge.service.infra.tables import Certificate, Erasure, Generation, Model, Restoration, Task, Version
from expunge.service.infra.time import SECOND
from expunge.service.models import empty_generation
from expunge.workers.storage.key_store import KeyStore
from expunge.workers.storage.update_journal import confirm_committed

EMPTIED = "emptied"
ERASED_AGAIN_SECONDS = 86_400.0
"""A worker that did not notice yet may make another key for a model that has ended: it is looked for this long."""


def keys_wait(tenants: Collection[str] | None) -> ColumnElement[bool]:
    """Return the condition that ``destroy_keys`` has something to do."""
    return select(Erasure.id).where(_of(tenants, Erasure.tenant_id), Erasure.destroyed_at.is_(None)).exists()


def destroy_keys(database: Database, keys: KeyStore, witness: Witness, tenants: Collection[str] | None = None) -> int:
    """Destroy every key due for erasure; return how many.

    The versions that their people left with are released first, and that is durable. ``tenants`` own keys in this key
    store, None means all: a key store that never held a key must not report it as destroyed. An erasure
    is marked as done only after the key's share was overwritten in its file. Raises Busy, KeysMissing, OSError.
    """
    with database.read() as session:
        due = session.execute(
            select(Erasure.id, Erasure.key_id, Erasure.version_id, Erasure.tenant_id)
            .where(Erasure.destroyed_at.is_(None), _of(tenants, Erasure.tenant_id))
            .order_by(Erasure.id)
        ).all()
        confirm_committed(session, witness, sorted({row.version_id for row in due if row.version_id}))
    if not due:
        return 0
    keys.destroy(row.key_id for row in due)
    crash_point("worker-after-erasure")
    with database.write() as session:
        at = recorded_at(session)
        for batch in batches(row.id for row in due):
            mark = update(Erasure).where(Erasure.id.in_(batch), Erasure.destroyed_at.is_(None))
            done = mark.values(destroyed_at=at, in_place=keys.overwrites_in_place)
            session.execute(done.execution_options(synchronize_session=False))
        for (tenant_id, version_id), count in Counter((row.tenant_id, row.version_id) for row in due).items():
            record(session, tenant_id, "keys.destroyed", version=version_id, count=count)
    database.truncate_log()
    return len(due)


def _of(tenants: Collection[str] | None, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    return true() if tenants is None else column.in_(sorted(tenants))


def drop_superseded_state(database: Database, private: Store, version_id: str | None) -> None:
    """Delete the secret state of a version that is no longer current. Never delete that of the current one."""
    if version_id is None:
        return
    with database.read() as session:
        version = session.get(Version, version_id)
        if version is None or version.status == "current":
            return
        shared = session.scalar(
            select(Version.id).where(Version.state == version.state, Version.status == "current").limit(1)
        )
    if shared is None:
        private.delete(version.state)


def ended_lately(tenants: Collection[str] | None) -> Select[Any]:
    """Return the generations of models that ended lately: id, manifest, and whether they have a version."""
    published = select(Version.id).where(Version.generation_id == Generation.id).exists()
    return (
        select(Generation.id, Generation.manifest, published)
        .join(Model, Model.id == Generation.model_id)
        .where(Model.status.in_(("retired", "cancelled")), Generation.status == "ended")
        .where(Generation.ended_at >= NOW - int(ERASED_AGAIN_SECONDS * SECOND), _of(tenants, Generation.tenant_id))
    )


def erase_ended(database: Database, private: Store, keys: KeyStore, tenants: Collection[str] | None = None) -> int:
    """Destroy what models that were retired or cancelled lately leave; return how many generations were looked at.

    Of a retired model: the sealed state of the version that was served last. Of a generation without a version: every
    key, and the state that its work units start from. ``tenants`` as in ``destroy_keys``.
    Raises Busy, KeysMissing, OSError.
    """
    with database.read() as session:
        generations = session.execute(ended_lately(tenants)).all()
        last = select(Model.current_id).where(
            Model.status == "retired", Model.generation_id.in_([row.id for row in generations])
        )
        versions = session.scalars(last).all()
    for version_id in versions:
        drop_superseded_state(database, private, version_id)
    for generation_id, manifest, has_version in generations:
        if has_version:
            continue
        notes = [(manifest or {}).get(name) for name in ("trained", "prepared")]
        for note in notes:
            if note:
                private.delete(note["state"])
        crash_point("erase-after-state")
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
