"""Whether the database still says of the current version what was published: no update starts from another.

The journal's draft of the version is sealed in the store, so a statement of SQL does not reach it. It has the version's
row, with the commitments to the tables that say what the version holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session, aliased

from expunge_service.infra.tables import Generation, Model, Version
from expunge_service.models import (
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
    write_blocks,
)
from expunge_service.queue import Deletions, fence
from expunge_service.requests import Names
from expunge_workers.storage.storage import Storage

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
_CHILD = aliased(Version)
WHAT_TO_RUN = "Run `expunge audit verify`, put the database back from a backup of before, and run `expunge restore`."


@dataclass(frozen=True)
class Uncommitted:
    """A release before 0.3 published the current version, and nothing was committed to since: ``commit_at_first``."""


@dataclass(frozen=True)
class TablesDiffer:
    """A table says something else of the current version than what was published."""

    table: str
    number: int

    def __str__(self) -> str:
        return f"The database's table {self.table} is not what version {self.number} was published with."


_SERVING = (
    select(
        Version,
        Generation,
        select(_CHILD.id).where(_CHILD.parent_id == Version.id, _CHILD.model_id == Model.id).exists(),
    )
    .select_from(Model)
    .outerjoin(Version, Version.id == Model.current_id)
    .outerjoin(Generation, Generation.id == Model.generation_id)
    .where(Model.id == bindparam("model"))
)


def as_published(
    session: Session, storage: Storage, model_id: str, generation_id: int, *, every_row: bool = False
) -> Committed | TablesDiffer | Uncommitted:
    """Return what the tables say of the model's current version, which is what was published; or which of them differs.

    ``generation_id``: the generation that serves. ``every_row``: read every membership and mark, not the digests of
    their blocks alone, of which ``changed_of`` reads the rows that requests name. Uncommitted only without it.

    Raises OSError where the store does not answer, and Damaged.
    """
    version, generation, replaced = session.execute(_SERVING, {"model": model_id}).one()
    if version is None or generation is None:
        return TablesDiffer("models", 0)
    here = (version.model_id, version.generation_id, generation.id, version.status)
    if here != (model_id, generation_id, generation_id, "current") or replaced:
        return TablesDiffer("models", version.number)
    table = _unlike_draft(storage, version, generation)
    if table is not None:
        return TablesDiffer(table, version.number)
    now = (committed_in_full if every_row else committed)(session, storage.pepper, generation)
    different = differing(version, now.tables)
    if different:
        return TablesDiffer(different[0], version.number)
    return now if now.memberships else Uncommitted()


def changed_of(session: Session, storage: Storage, tables: Committed, names: Names) -> str | None:
    """Return the table that says something else of what these requests name than what was published; else None.

    ``tables``: what ``as_published`` returned in this transaction.
    """
    named = ((SUBJECT, names.subjects), (SAMPLE, names.samples))
    for table, read in ((MEMBERSHIPS, changed), (FORGOTTEN, changed_marks)):
        if any(read(session, storage.pepper, tables, by, those) for by, those in named):
            return table
    return None


def commit_at_first(storage: Storage, job: Deletions) -> None:
    """Write what versions commit to of the memberships of a generation that is ``Uncommitted``.

    From now on they stand as they are. Raises Stale.
    """
    with storage.database.snapshot() as session:
        blocks = block_rows(session, storage.pepper, job.generation_id)
    with storage.database.write() as session:
        fence(session, job.lease)
        write_blocks(session, blocks)


def _unlike_draft(storage: Storage, version: Version, generation: Generation) -> str | None:
    """Return the table that differs from the version's sealed draft; None where none does.

    Raises OSError, Damaged.
    """
    try:
        draft = storage.journal.draft(version.model_id, version.number)
    except FileNotFoundError:
        draft = None
    if draft is None or draft.version is None:  # a release before 0.2 published it
        return None if version.commitments is None else "versions"
    if any(getattr(version, name) != draft.version.get(name) for name in FIXED):
        return "versions"
    return "generations" if generation.spent < draft.spent else None
