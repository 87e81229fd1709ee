"""The scheduler's own check of the whole audit log. The status page and a metric read its result."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.audit import merkle as tree
from service.audit.key_rotation import verifiers
from service.audit.log import newest_head
from service.audit.signed_note import Checkpoint, NoteError, Verifier
from service.audit.verify import Tampered
from service.infra.db import Database, now
from service.infra.tables import AuditEntry, LogCheck

STEP = 20_000
"""entries that are read at once, so that the scheduler's other duties wait for less than a second"""


def check_log(database: Database, verifier: Verifier) -> Iterator[None]:
    """Compare every entry with the newest signed head, then store what was found; yields after each step.

    The log must also continue the head that the check before this one found sound.
    """
    try:
        size, note = yield from _sound_head(database, verifier)
        fault = None
    except Tampered as error:
        fault = str(error)
    with database.write() as session:
        row = session.get(LogCheck, 1) or LogCheck(id=1, size=0, note=None)
        row.checked_at, row.fault = now(session), fault
        if fault is None:
            row.size, row.note = size, note
        session.add(row)


def _sound_head(database: Database, verifier: Verifier) -> Iterator[None]:
    """Return size and note of the newest head; None for the note of an empty log. Raises Tampered."""
    with database.read() as session:
        head, last = newest_head(session), session.get(LogCheck, 1)
        earlier = _earlier(session, verifier, last)
    if head is None:
        if earlier is None:
            return 0, None
        raise Tampered("The log is gone: it has no signed head.")
    try:
        newest = verifier.checkpoint(head.note)
    except NoteError as error:
        raise Tampered(f"The newest head does not verify. {error}") from None
    wanted = {newest.size: newest.root} | ({earlier.size: earlier.root} if earlier else {})
    if earlier and earlier.size > newest.size:
        raise Tampered("The log is shorter than at the last check.")
    yield from _compare(database, newest.size, wanted)
    return newest.size, head.note


def _earlier(session: Session, verifier: Verifier, last: LogCheck | None) -> Checkpoint | None:
    """Return the head of the last check that found the log sound. Raises Tampered where no key of the log signed it."""
    if last is None or last.note is None:
        return None
    for each in verifiers(session, verifier):
        try:
            return each.checkpoint(last.note)
        except NoteError:
            continue
    raise Tampered("The head of the last check was edited.")


def _compare(database: Database, size: int, wanted: dict[int, bytes]) -> Iterator[None]:
    """Build the tree over the first ``size`` entries; at each wanted size it must have this root. Raises Tampered."""
    frontier: list[bytes] = []
    place = 0
    while place < size:
        rows = (
            select(AuditEntry.log_index, AuditEntry.body)
            .where(AuditEntry.log_index >= place, AuditEntry.log_index < min(size, place + STEP))
            .order_by(AuditEntry.log_index)
        )
        with database.read() as session:
            found = session.execute(rows).all()
        for index, body in found or [(None, "")]:
            if index != place:
                raise Tampered(f"Entry {place} is missing.")
            tree.append(frontier, place, tree.leaf_hash(body.encode()))
            place += 1
            if place in wanted and tree.root(frontier) != wanted[place]:
                raise Tampered(f"One of the first {place} entries was edited, removed or moved.")
        yield
