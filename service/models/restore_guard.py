"""After a backup was restored: the service reads only, until the operator has confirmed what was put right.

An update leaves a file next to the checkpoints (workers.storage.release_journal). A database that lacks the version of
one is older than its store.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from service.audit.log import newest_head, record, recorded_at
from service.audit.witness import Epoch, Witness, epoch_of
from service.infra.db import Busy, Database, batches
from service.infra.files import Folder
from service.infra.settings import SettingsError
from service.infra.tables import Restoration, Version

UPDATES = "updates"
COMMITTED = ".release"


def updates_in(store: Folder) -> Folder:
    """Return the journal's folder. A publication waits for its files while intake waits for the publication."""
    return store.inside(UPDATES).promptly()


def unconfirmed(session: Session) -> Restoration | None:
    """Return the restoration that waits for the operator. None: the service may write."""
    waiting = select(Restoration).where(Restoration.confirmed_at.is_(None))
    return session.scalars(waiting.limit(1)).one_or_none()


def confirm(session: Session, tenant_id: str, witness: Witness) -> dict[str, Any] | None:
    """Let the service write again, in a new epoch; returns the report that was confirmed. None: nothing waited.

    Raises Contradicted where another began that epoch at this moment, and OSError where the store does not answer.
    """
    waiting = unconfirmed(session)
    if waiting is None:
        return None
    epoch = _next_epoch(session, witness)
    waiting.confirmed_at, waiting.epoch = recorded_at(session), epoch.number
    record(session, tenant_id, "restore.confirmed", restoration=waiting.id, epoch=epoch.number)
    session.flush()
    witness.begin(epoch)  # without the commit nothing is in that epoch, and the next confirmation begins the one after
    return waiting.report


def _next_epoch(session: Session, witness: Witness) -> Epoch:
    """Return the epoch in which the log goes on from the database's newest head, whatever was signed after it."""
    old, head = witness.epoch(epoch_of(session)), newest_head(session)
    begins = 0 if head is None else head.size
    since = witness.last_head(old.number, begins) or witness.last_head(old.number, old.begins)
    return Epoch(old.number + 1, begins, since or old.last)


def updates_missing(database: Database, store: Folder) -> int:
    """Count the committed updates that the database does not know because it was restored from an older backup.

    Raises Busy, OSError.
    """
    names = [PurePath(entry.name) for entry in updates_in(store).entries()]
    versions = [name.stem for name in names if name.suffix == COMMITTED and not name.stem.startswith("draw-")]
    with database.read() as session:
        known = sum(len(_known(session, part)) for part in batches(versions))
    return len(versions) - known


def check_age(database: Database, store: Folder) -> None:
    """Check that no committed update is missing from the database. Raises SettingsError.

    A worker would publish others in their place, and the API would accept keys that were revoked since. While the
    database or the store does not answer, or the database has no tables yet, nothing is checked.
    """
    try:
        missing = updates_missing(database, store) if _has_versions(database) else 0
    except (Busy, OSError):
        return
    if missing:
        raise SettingsError(
            f"The database is older than the store: it was restored from a backup and lacks {missing} "
            f"{'update' if missing == 1 else 'updates'}. Run `expunge migrate`, then `expunge restore`."
        )


def _has_versions(database: Database) -> bool:
    with database.read() as session:
        return inspect(session.connection()).has_table(Version.__tablename__)


def _known(session: Session, ids: list[str]) -> list[str]:
    return list(session.scalars(select(Version.id).where(Version.id.in_(ids))))
