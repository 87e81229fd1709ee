"""Whether the database still says of the current version what was published: no update starts from another.

The journal's draft of the version is sealed in the store, so a statement of SQL does not reach it. It has the version's
row, with the commitments to the tables that say what the version holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.infra.tables import Generation, Model, Version
from expunge.service.models import (
    FORGOTTEN,
    MEMBERSHIPS,
    SAMPLE,
    SUBJECT,
    Committed,
    block_rows,
    changed,
    changed_marks,
    committed,
    committed_in_full,
    differing,
    has_blocks,
    write_blocks,
)
from expunge.service.queue import Deletions, fence
from expunge.service.requests import Names
from expunge.workers.storage.storage import Storage

FIXED = (
    "id",
    "tenant_id",
    "model_id",
    "generation_id",
    "number",
    "parent_id",
    "checkpoint",
    "size",
    "state",
    "method",
    "claim",
    "samples",
    "people",
    "commitments",
)
"""the columns of a version that never change"""
WHAT_TO_RUN = "Run `expunge audit verify`, put the database back from a backup of before, and run `expunge restore`."


@dataclass(frozen=True)
class TablesDiffer:
    """A table says something else of the current version than what was published."""

    table: str
    number: int

    def __str__(self) -> str:
        return f"The database's table {self.table} is not what version {self.number} was published with."


def as_published(
    session: Session, storage: Storage, model_id: str, generation_id: int, *, every_row: bool = False
) -> Committed | TablesDiffer:
    """Return what the tables say of the model's current version, which is what was published; or which of them differs.

    ``generation_id``: the generation that serves. ``every_row``: read every membership and mark, not the digests of
    their blocks alone, of which ``changed_of`` reads the rows that requests name.

    Raises OSError where the store does not answer, and Damaged.
    """
    model = session.get_one(Model, model_id)
    version = session.get(Version, model.current_id) if model.current_id else None
    if version is None:
        return TablesDiffer("models", 0)
    here = (version.model_id, version.generation_id, version.status)
    replaced = session.scalar(select(Version.id).where(Version.parent_id == version.id, Version.model_id == model_id))
    if here != (model_id, model.generation_id, "current") or replaced or model.generation_id != generation_id:
        return TablesDiffer("models", version.number)
    generation = session.get_one(Generation, generation_id)
    sealed = _sealed(storage, version)
    if sealed is None and version.commitments is not None:
        return TablesDiffer("versions", version.number)
    if sealed is not None:
        spent, row = sealed
        if any(getattr(version, name) != row.get(name) for name in FIXED):
            return TablesDiffer("versions", version.number)
        if generation.spent < spent:
            return TablesDiffer("generations", version.number)
    now = (committed_in_full if every_row else committed)(session, storage.pepper, generation)
    other = differing(version, now.tables)
    return TablesDiffer(other[0], version.number) if other else now


def changed_of(session: Session, storage: Storage, generation_id: int, names: Names) -> str | None:
    """Return the table that says something else of what these requests name than what was published; else None."""
    named = ((SUBJECT, names.subjects), (SAMPLE, names.samples))
    for table, read in ((MEMBERSHIPS, changed), (FORGOTTEN, changed_marks)):
        if any(read(session, storage.pepper, generation_id, by, those) for by, those in named):
            return table
    return None


def commit_at_first(storage: Storage, job: Deletions) -> None:
    """Write what versions commit to of the memberships of a generation that a release before 0.3 began.

    From now on they stand as they are. Raises Stale.
    """
    with storage.database.snapshot() as session:
        version = session.get(Version, job.current_id)
        if version is None or version.commitments is not None or has_blocks(session, job.generation_id):
            return
        blocks = block_rows(session, storage.pepper, job.generation_id)
    with storage.database.write() as session:
        fence(session, job.lease)
        write_blocks(session, blocks)


def _sealed(storage: Storage, version: Version) -> tuple[int, dict[str, Any]] | None:
    """Return what the version's generation had spent with it, and its row; None: a release before 0.2 published it."""
    try:
        entry = storage.journal.draft(version.model_id, version.number)
    except FileNotFoundError:
        return None
    return None if entry.version is None else (entry.spent, entry.version)
