"""One large sealed row, read a piece at a time: a database's client would hold all of it several times."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import cast

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from service.infra.tables import StoredVector

PIECE = 1 << 20
_ROWID = text("SELECT rowid FROM recollections WHERE generation_id = :generation AND holder = :holder")


def sealed_pieces(session: Session, generation_id: int, holder: str, size: int) -> Iterator[bytes]:
    """The sealed bytes of the holder's row, ``size`` in all, in pieces of ``PIECE``."""
    if session.get_bind().dialect.name == "sqlite":
        return _from_sqlite(session, generation_id, holder)
    return _from_postgres(session, generation_id, holder, size)


def _from_sqlite(session: Session, generation_id: int, holder: str) -> Iterator[bytes]:
    """SQLite's substr would read the whole row for each piece; its handles on a blob do not."""
    rowid = session.execute(_ROWID, {"generation": generation_id, "holder": holder}).scalar_one()
    driver = cast(sqlite3.Connection, session.connection().connection.driver_connection)
    with driver.blobopen("recollections", "sealed", rowid, readonly=True) as blob:
        while piece := blob.read(PIECE):
            yield piece


def _from_postgres(session: Session, generation_id: int, holder: str, size: int) -> Iterator[bytes]:
    """PostgreSQL keeps what does not compress in slices, and reads those alone that are asked for."""
    mine = (StoredVector.generation_id == generation_id, StoredVector.holder == holder)
    for start in range(0, size, PIECE):
        piece = session.execute(select(func.substr(StoredVector.sealed, start + 1, PIECE)).where(*mine)).scalar_one()
        yield bytes(piece)
