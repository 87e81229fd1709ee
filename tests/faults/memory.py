"""The service in memory, for simulations: the test sets its clock, and a run can be repeated quickly.

The rules are the same code. The database is SQLite with all constraints and the same statements; the files and the
broker are dictionaries and lists; SQL reads the test's clock. It is not for serving: what is in memory is lost with its
process.
"""

from __future__ import annotations

import hashlib
import io
import sqlite3
from collections.abc import Container, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import create_engine, event
from sqlalchemy.pool import StaticPool

from expunge_service.infra.db import Database, tell_sqlite
from expunge_service.infra.files import DiskFolder
from expunge_service.infra.stores import Damaged, Store, StoredFile
from expunge_service.infra.time import DAY_SECONDS, SECOND

_UNIX_EPOCH = 2440587.5  # as a Julian day
_IN_WAL = slice(18, 20)  # of the header: a database in memory has no log to be read from


@dataclass
class ManualClock:
    """A clock that a test moves. ``at`` is in microseconds since 1970; SQLite resolves milliseconds."""

    at: int = 1_767_225_600_000_000

    def advance(self, seconds: float) -> None:
        self.at += int(seconds * SECOND)

    def julian_day(self, _: str) -> float:
        """Return what SQLite's julianday('now') answers."""
        return self.at / (DAY_SECONDS * SECOND) + _UNIX_EPOCH


class MemoryDatabase(Database):
    """One SQLite connection in memory with the clock ``clock``. For one thread at a time; scopes do not nest."""

    def __init__(self, clock: ManualClock, image: bytes = b"") -> None:
        self.clock = clock
        engine = create_engine(
            "sqlite://", hide_parameters=True, poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        tell_sqlite(engine)
        event.listen(engine, "connect", self._tell_time)
        self._serve(engine)
        if image:
            self.restore(image)

    def image(self) -> bytes:
        """Return everything that is committed, as ``restore`` takes it."""
        return self._raw().serialize()

    def restore(self, image: bytes) -> None:
        """Replace the content by the image, as a restored backup does.

        It is copied page by page: in SQLite 3.40 a connection that deserialized an image crashes at its first write.
        """
        whole = bytearray(image)
        whole[_IN_WAL] = b"\x01\x01"
        with closing(sqlite3.connect(":memory:")) as source:
            source.deserialize(bytes(whole))
            source.backup(self._raw())

    def changes(self) -> int:
        """Return how many rows were written so far: an unchanged number means no change."""
        return self._raw().total_changes

    def _raw(self) -> sqlite3.Connection:
        with self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        return driver

    def _tell_time(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.create_function("julianday", 1, self.clock.julian_day)


def image_of(path: Path) -> bytes:
    """Return the image of a SQLite file: what is committed in it and in its log."""
    with sqlite3.connect(path) as source, sqlite3.connect(":memory:") as target:
        source.backup(target)
        return target.serialize()


class MemoryStore(Store):
    """Files by digest in a dictionary. ``root`` is only a name for code that puts other files there."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(DiskFolder(root))
        self.files: dict[str, bytes] = {}
        self._clock = clock
        self._written: dict[str, int] = {}

    def replace_all(self, files: Mapping[str, bytes]) -> None:
        """Replace all files by these, by digest; a sweep takes them for old."""
        self.files, self._written = dict(files), {}

    def put(self, chunks: Iterable[bytes | memoryview]) -> StoredFile:
        data = b"".join(bytes(chunk) for chunk in chunks)
        digest = hashlib.sha256(data).hexdigest()
        self.files[digest], self._written[digest] = data, self._clock.at
        return StoredFile(digest, len(data))

    def open(self, digest: str) -> BinaryIO:
        data = self.files.get(digest)
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise Damaged(f"file {digest} is missing from memory, or has other bytes")
        return io.BytesIO(data)

    def holds(self, digest: str) -> bool:
        return digest in self.files

    def delete(self, *digests: str) -> None:
        for digest in digests:
            self.files.pop(digest, None)

    def sweep(self, keep: Container[str], older_than: float) -> int:
        before = self._clock.at - int(older_than * SECOND)
        orphans = [digest for digest in self.files if digest not in keep and self._written.get(digest, 0) <= before]
        for digest in orphans:
            del self.files[digest]
        return len(orphans)


@dataclass
class MemoryBroker:
    """A fake Celery app: it keeps messages in a list, for a test to take in any order, twice, or never."""

    messages: list[str] = field(default_factory=list)

    def send_task(self, _name: str, args: list[str], **_options: object) -> None:
        self.messages += args
