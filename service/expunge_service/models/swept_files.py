"""Files that are deleted because no version names them, and the publications that may not name them any more.

A worker may sleep for hours between its files and its transaction. So a sweep notes each file in the database before it
deletes it, under a lock that each publication shares: either the sweep sees the version, or the publication the note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import bindparam, or_, select, text, update
from sqlalchemy.orm import Session

from expunge_service.infra.db import Database, batches, now
from expunge_service.infra.stores import DIGEST, Store
from expunge_service.infra.tables import SweptFile, Version

UNPURGED = ("current", "retired")
"""statuses of versions with files that are needed"""
_LOCK = 7206
_TAKEN = (
    select(SweptFile.digest)
    .where(SweptFile.digest.in_(bindparam("digests", expanding=True)))
    .where(or_(SweptFile.deleted_at.is_(None), SweptFile.deleted_at >= bindparam("written")))
    .limit(1)
)


def any_swept(session: Session, digests: Collection[str], written_after: int) -> bool:
    """Return whether a sweep took any of these files, which were written after this moment (microseconds).

    From here to the end of the transaction no sweep takes one.
    """
    _lock(session, "pg_advisory_xact_lock_shared")
    return session.scalar(_TAKEN, {"digests": list(digests), "written": written_after}) is not None


def note_swept(session: Session, digests: Iterable[str], apart_from: str | None = None) -> list[str]:
    """Note the files that no version needs, and return them: they may be deleted once this is committed.

    ``apart_from``: the id of a version that does not need its checkpoint any more.
    """
    _lock(session, "pg_advisory_xact_lock")
    free: list[str] = []
    for batch in batches(digests):
        published = select(Version.checkpoint).where(Version.checkpoint.in_(batch), Version.status.in_(UNPURGED))
        secret = select(Version.state).where(Version.state.in_(batch), Version.status == "current")
        needed = {*session.scalars(published.where(Version.id != (apart_from or ""))), *session.scalars(secret)}
        free += [digest for digest in batch if digest not in needed]
    for digest in free:
        session.merge(SweptFile(digest=digest, deleted_at=None))
    session.flush()
    return free


def note_deleted(session: Session, digests: Iterable[str]) -> None:
    """Note that these files are deleted: a file that is written under such a name from now on is another one."""
    at = now(session)
    for batch in batches(digests):
        session.execute(update(SweptFile).where(SweptFile.digest.in_(batch)).values(deleted_at=at))


def sweep_store(database: Database, store: Store, keep: Collection[str], older_than: float) -> int:
    """Delete the store's files that are not in ``keep`` and older than ``older_than`` seconds; return how many.

    Raises Busy, OSError.
    """
    found = store.orphans(keep, older_than)
    with database.write() as session:
        named = note_swept(session, [name for name in found if DIGEST.fullmatch(name)])
    gone = [*named, *(name for name in found if not DIGEST.fullmatch(name))]
    store.folder.delete(gone)
    with database.write() as session:
        note_deleted(session, named)
    return len(gone)


def _lock(session: Session, function: str) -> None:
    """Take the lock in PostgreSQL; SQLite has one writer at a time."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(f"SELECT {function}(:lock)"), {"lock": _LOCK})
