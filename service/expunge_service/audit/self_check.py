"""The service's own check of the whole audit log: the scheduler's, whose result the status page and two metrics read,
and one before each dossier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event

from sqlalchemy import select

from expunge_service.audit import merkle
from expunge_service.audit.key_rotation import keys_of
from expunge_service.audit.log import newest_head
from expunge_service.audit.signed_note import NotAuthentic, Signer, Verifier
from expunge_service.audit.verification import open_head
from expunge_service.infra.db import Database, now
from expunge_service.infra.logging import describe
from expunge_service.infra.tables import AuditEntry, LogCheck

CHECK_SECONDS = 3600
_LOOK_SECONDS = 10.0
_STEP = 20_000
"""entries that are held in memory at once"""
log = logging.getLogger(__name__)


def keep_checking(database: Database, signer: Callable[[], Signer], stop: Event) -> None:
    """Check the log now, every hour, and whenever it has doubled, until ``stop`` is set."""
    begun = False
    while not stop.is_set():
        try:
            if _is_due(database, begun):
                check_log(database, signer().verifier)
                begun = True
        except Exception as error:  # the next look tries again
            log.error("check of the audit log failed: %s", describe(error))
        stop.wait(_LOOK_SECONDS)


def check_log(database: Database, verifier: Verifier) -> None:
    """Check the log, and store what was found."""
    found = compare_log(database, verifier)
    with database.write() as session:
        row = session.get(LogCheck, 1) or LogCheck(id=1, size=0)
        row.checked_at, row.fault = now(session), found.fault
        if found.fault is None:
            row.size, row.note = found.size, found.note
        session.add(row)


def compare_log(database: Database, verifier: Verifier) -> LogCheck:
    """Compare every entry with the newest signed head; return what was found, without storing it.

    The log must also continue the head that the last successful check found.
    """
    found = LogCheck(id=1, size=0)
    try:
        found.size, found.note = _verified(database, verifier)
    except NotAuthentic as error:
        found.fault = str(error)
        log.error("the audit log does not verify: %s", found.fault)
    with database.read() as session:
        found.checked_at = now(session)
    return found


def _is_due(database: Database, begun: bool) -> bool:
    """Return whether the log is to be checked. ``begun``: this process has checked it before."""
    with database.read() as session:
        last, head = session.get(LogCheck, 1), newest_head(session)
        if last is None or (last.note is None and last.fault is None):
            return head is not None
        doubled = last.fault is None and head is not None and head.size >= 2 * last.size
        return not begun or doubled or now(session) - last.checked_at >= CHECK_SECONDS * 1_000_000


def _verified(database: Database, verifier: Verifier) -> tuple[int, str | None]:
    """Return the size and the note of the newest head; of an empty log 0 and None. Raises NotAuthentic."""
    with database.read() as session:
        head, last = newest_head(session), session.get(LogCheck, 1)
        keys = keys_of(session, verifier)
    earlier = None
    if last is not None and last.note is not None:
        try:
            earlier = open_head(keys, last.note)
        except NotAuthentic:
            raise NotAuthentic("The stored result of the last check was edited.") from None
    if head is None:
        if earlier is None:
            return 0, None
        raise NotAuthentic("The log is gone: it has no signed head any more.")
    try:
        newest = open_head(keys, head.note)
    except NotAuthentic as error:
        raise NotAuthentic(f"The newest head does not verify. {error}") from None
    roots = {newest.size: newest.root}
    if earlier is not None:
        if earlier.size > newest.size:
            raise NotAuthentic(f"The log has {newest.size} entries; at the last check it had {earlier.size}.")
        roots[earlier.size] = earlier.root
    _compare(database, newest.size, roots)
    return newest.size, head.note


def _compare(database: Database, size: int, roots: dict[int, bytes]) -> None:
    """Build the tree over the first ``size`` entries; at these sizes it must have these roots. Raises NotAuthentic."""
    frontier: list[bytes] = []
    place = 0
    while place < size:
        rows = (
            select(AuditEntry.log_index, AuditEntry.body)
            .where(AuditEntry.log_index >= place, AuditEntry.log_index < min(size, place + _STEP))
            .order_by(AuditEntry.log_index)
        )
        with database.read() as session:
            found = session.execute(rows).all()
        if not found:
            raise NotAuthentic(f"Entry {place} is missing.")
        for index, body in found:
            if index != place:
                raise NotAuthentic(f"Entry {place} is missing.")
            merkle.append(frontier, place, merkle.leaf_hash(body.encode()))
            place += 1
            if place in roots and merkle.root(frontier) != roots[place]:
                raise NotAuthentic(f"One of the first {place} entries was edited, removed or moved.")
