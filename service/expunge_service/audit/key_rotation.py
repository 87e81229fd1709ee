"""A new signing key for the log and the certificates. The old one is retired in the log itself.

The entry that retires a key names its successor, and both keys sign it (``succession``). So a holder
of the old key can move to the new one. A holder of the new key finds the earlier keys in the log, and what
they signed until then still verifies. The store holds a copy of the entry: a database that is put back to before the
rotation finds it there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.audit.log import integrate, record
from expunge_service.audit.signed_note import Handover, NotAuthentic, Signer, Verifier
from expunge_service.audit.succession import ROTATED, Succession, TrustedKey, signatures, trusted_keys
from expunge_service.infra.files import Folder
from expunge_service.infra.tables import AuditEntry
from expunge_service.infra.tenants import DEFAULT_TENANT

FOLDER = "handovers"
"""in the store: for each rotation the text of its entry, named by the size of the log with it and the new key's id"""
WAITS = 1 << 62
"""the index of a rotation that has no place in the log yet"""


def rotate_signing_key(session: Session, old: Signer, new: Signer) -> None:
    """Retire ``old`` in the log, under a head that both keys sign. Call it once; it takes effect with the commit.

    Raises SettingsError, NotAuthentic.
    """
    while integrate(session, old):
        pass
    record(session, DEFAULT_TENANT, ROTATED, **signatures(old, new))
    session.flush()
    integrate(session, Handover(old, new))


def keep_handovers(session: Session, store: Folder) -> None:
    """Write each rotation of the log into the store, unless it is there. Raises OSError, NotAuthentic."""
    folder = store.inside(FOLDER)
    for each in _rotations(session):
        if each.index == WAITS:
            continue
        name, text = f"{each.index + 1}.{each.key.key_id.hex()}", each.body.encode()
        try:
            folder.add(name, [text])
        except FileExistsError:
            found = folder.read(name)
            if found == text:
                continue
            if not any(other.acknowledged and other.retired == each.retired for other in _read(folder, name)):
                raise NotAuthentic(f"{folder}/{name} is no handover of this log, and is not overwritten.") from None


def handovers(store: Folder) -> list[Succession]:
    """Return the rotations that the store holds, oldest first, unchecked. Raises OSError."""
    folder = store.inside(FOLDER)
    found = [rotation for each in folder.entries() for rotation in _read(folder, each.name)]
    return sorted(found, key=lambda each: each.index)


def _read(folder: Folder, name: str) -> list[Succession]:
    size = name.partition(".")[0]
    return _readable([(int(size) - 1, folder.read(name).decode(errors="replace"))]) if size.isdecimal() else []


def keys_of(session: Session, configured: Verifier) -> list[TrustedKey]:
    """Return the key in use and all that were retired. Certificates of any age verify with one of them."""
    return trusted_keys(configured, _rotations(session))


def _rotations(session: Session) -> list[Succession]:
    """Return the log's rotations, oldest first. One that waits for its place comes last, and limits no head yet."""
    rows = select(AuditEntry.log_index, AuditEntry.body).where(AuditEntry.kind == ROTATED)
    ordered = rows.order_by(AuditEntry.log_index.is_(None), AuditEntry.log_index, AuditEntry.id)
    return _readable((WAITS if index is None else index, body) for index, body in session.execute(ordered))


def _readable(entries: Iterable[tuple[int, str]]) -> list[Succession]:
    """Return the rotations. What is none is left out: no chain needs it."""
    found = []
    for index, body in entries:
        with suppress(NotAuthentic):
            found.append(Succession.parse(index, body))
    return found
