"""The key store: one AES key for each holder of each lineage, in a database of its own.

Forgetting ends in destroying a key, because deleted bytes stay in a database's files and logs for long. The API
process cannot read this store, and backups leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from sqlalchemy import LargeBinary, String, delete, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.db import Database
from service.identity import new_id
from service.records import Serial
from workers.sealing import new_key

BATCH = 500
T = TypeVar("T")


class KeyRecord(DeclarativeBase):
    pass


class HolderKey(KeyRecord):
    __tablename__ = "holder_keys"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    lineage_id: Mapped[int] = mapped_column(Serial, index=True)
    key: Mapped[bytes] = mapped_column(LargeBinary)


class KeyStore:
    """Keys by opaque id. Creating the store creates its table."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        with self._database.write() as session:
            if self._database.dialect == "postgresql":
                session.execute(text("SELECT pg_advisory_xact_lock(7203)"))
            KeyRecord.metadata.create_all(session.connection())

    def create(self, lineage_id: int, count: int) -> list[tuple[str, bytes]]:
        """``count`` fresh keys with their ids, durable when this returns."""
        keys = [(new_id(), new_key()) for _ in range(count)]
        rows = [{"id": key_id, "lineage_id": lineage_id, "key": key} for key_id, key in keys]
        with self._database.write() as session:
            for batch in batches(rows, BATCH):
                session.execute(insert(HolderKey), batch)
        return keys

    def fetch(self, ids: Iterable[str]) -> dict[str, bytes]:
        """The keys that still exist, by id."""
        with self._database.read() as session:
            return {
                row.id: row.key
                for batch in batches(ids, BATCH)
                for row in session.execute(select(HolderKey.id, HolderKey.key).where(HolderKey.id.in_(batch)))
            }

    def destroy(self, ids: Iterable[str]) -> bool:
        """Destroy keys; ids that are gone already are passed over. True when no log holds their bytes any more."""
        with self._database.write() as session:
            for batch in batches(ids, BATCH):
                session.execute(delete(HolderKey).where(HolderKey.id.in_(batch)))
        return self.scrub()

    def destroy_lineage(self, lineage_id: int) -> bool:
        """Destroy every key of a lineage, as ``destroy`` does."""
        with self._database.write() as session:
            session.execute(delete(HolderKey).where(HolderKey.lineage_id == lineage_id))
        return self.scrub()

    def scrub(self) -> bool:
        """Clear what deleting leaves behind: SQLite's log, PostgreSQL's dead rows. False: busy, try again later."""
        if self._database.dialect == "postgresql":
            with self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("VACUUM holder_keys"))
            return True
        return self._database.truncate_log()

    def close(self) -> None:
        self._database.close()


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of ``size``, the last one shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
