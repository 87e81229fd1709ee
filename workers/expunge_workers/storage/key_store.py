"""The key store: one AES key for each person of each generation. Half of it is in a separate database, half in files.

A deletion ends with destroying a key, because deleted bytes stay in a database's files and logs for long. The API
process can read neither half, and backups contain neither. The id of a destroyed key is kept, so that another key
store, which never held the key, cannot report it as destroyed.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import LargeBinary, String, delete, func, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from expunge_service.infra.db import Database, batches
from expunge_service.infra.files import MARK, Folder
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import Settings
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tables import Serial
from expunge_workers.storage.encryption import new_key

SHARE_BYTES = 32
ERASED = bytes(SHARE_BYTES)


class KeysMissing(RuntimeError):
    """Keys that were not destroyed are not where this process looks for them."""


class KeyFiles:
    """A folder of key files, shared by all workers and schedulers: one share of every key, overwritten in place.

    A key is two shares joined by XOR. The other share is a row of the key store's database. A database keeps copies of
    what it deletes: in its heap, in its write-ahead log, in its replicas. Of a share in a key file there is no copy,
    so overwriting it destroys the key. One share alone tells no bit of the key.

    The folder is one on a disk or one in a bucket. What the media below it keep of overwritten bytes is beyond us:
    docs/backup.md says which disks and buckets are fit.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def write(self, shares: Sequence[bytes]) -> str:
        """Write a new file with these shares, 32 bytes each; return its name once it is durable. Raises OSError."""
        name = secrets.token_hex(8)
        self.folder.create(name, b"".join(shares))
        return name

    def read(self, name: str, slots: Iterable[int]) -> dict[int, bytes]:
        """Return the shares at these places, without those that were erased. Raises KeysMissing."""
        content = self._content(name)
        shares = {slot: content[slot * SHARE_BYTES : (slot + 1) * SHARE_BYTES] for slot in slots}
        return {slot: share for slot, share in shares.items() if share != ERASED}

    def erase(self, name: str, slots: Iterable[int]) -> None:
        """Overwrite these shares with zeros, durably. Raises KeysMissing, OSError."""
        self._overwrite(name, dict.fromkeys((slot * SHARE_BYTES for slot in slots), ERASED))

    def erase_all(self, name: str) -> None:
        """Overwrite every share of a file. Raises KeysMissing, OSError."""
        self._overwrite(name, {0: bytes(len(self._content(name)))})

    def unlink(self, names: Iterable[str]) -> None:
        """Delete files with all shares erased, where they still exist. Raises OSError."""
        self.folder.delete(names)

    def older_than(self, seconds: float) -> Iterator[str]:
        """Yield the names of files that were written, or had a share erased, so many seconds ago or earlier."""
        before = time.time() - seconds
        for entry in self.folder.entries():
            if entry.written_at <= before and entry.name != MARK:
                yield entry.name

    def _content(self, name: str) -> bytes:
        try:
            return self.folder.read(name)
        except FileNotFoundError:
            raise _no_file(self.folder, name) from None

    def _overwrite(self, name: str, pieces: Mapping[int, bytes]) -> None:
        try:
            self.folder.overwrite(name, pieces)
        except FileNotFoundError:
            raise _no_file(self.folder, name) from None


def _no_file(folder: Folder, name: str) -> KeysMissing:
    return KeysMissing(
        f"There is no key file {name} in {folder}, though its keys were not destroyed. Let EXPUNGE_KEY_FOLDER "
        "name the one folder that all workers and schedulers share."
    )


T = TypeVar("T")


class KeyRecord(DeclarativeBase):
    pass


class HolderKey(KeyRecord):
    """One share of a key, and the file and slot of its other share. Both are empty once the key is destroyed."""

    __tablename__ = "holder_keys"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    generation_id: Mapped[int] = mapped_column(Serial, index=True)
    share: Mapped[bytes] = mapped_column(LargeBinary)
    file: Mapped[str] = mapped_column(String(16), index=True)
    slot: Mapped[int]


class KeyStoreMark(KeyRecord):
    """To which installation the key store belongs: at most one row."""

    __tablename__ = "installation"
    mark: Mapped[str] = mapped_column(String(200), primary_key=True)


class KeyStore:
    """Keys by opaque id. Creating the store creates its tables."""

    def __init__(self, url: str, files: KeyFiles) -> None:
        self._database = Database(url)
        self._files = files
        with self._database.write() as session:
            if self._database.dialect == "postgresql":
                session.execute(text("SELECT pg_advisory_xact_lock(7203)"))
            KeyRecord.metadata.create_all(session.connection())

    @classmethod
    def of(cls, settings: Settings) -> KeyStore:
        """Open the key store that the settings name. Raises Busy."""
        return cls(settings.key_store_url, KeyFiles(folder_at(settings.key_folder)))

    @property
    def overwrites_in_place(self) -> bool:
        """Return whether a share is overwritten where it lay; a bucket replaces the object that holds it."""
        return self._files.folder.overwrites_in_place

    def create(self, generation_id: int, count: int) -> list[tuple[str, bytes]]:
        """Make ``count`` fresh keys of 32 bytes; return them with their ids, durable. Raises Busy, OSError."""
        keys = [(new_id(), new_key()) for _ in range(count)]
        for batch in batches(keys):
            shares = [new_key() for _ in batch]
            file = self._files.write(shares)
            rows = [
                {"id": key_id, "generation_id": generation_id, "share": _joined(key, share), "file": file, "slot": slot}
                for slot, ((key_id, key), share) in enumerate(zip(batch, shares, strict=True))
            ]
            with self._database.write() as session:
                session.execute(insert(HolderKey), rows)
        return keys

    def fetch(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the keys that were not destroyed, by id. Raises Busy, KeysMissing."""
        wanted = list(ids)
        try:
            return self._fetch(wanted)
        except KeysMissing:  # its last key may have been destroyed since its row was read
            return self._fetch(wanted)

    def destroy(self, ids: Iterable[str]) -> None:
        """Destroy these keys, where they still exist. Raises Busy, KeysMissing, OSError.

        The share in the key file is erased first: a row that remains opens no vector, and says where the share was.
        Where some of the keys were never in this store, the others are destroyed, and then KeysMissing is raised.
        """
        missing = 0
        for batch in batches(ids):
            try:
                missing += self._destroy(batch)
            except KeysMissing:  # as in fetch
                missing += self._destroy(batch)
        if missing:
            raise KeysMissing(
                f"{missing} keys that must be destroyed are not in this key store, which has not destroyed them "
                "either: it is not the one that they were made in, or it was restored from a backup. Let "
                "EXPUNGE_KEY_STORE_URL name that one. Certificates wait until the keys are destroyed."
            )

    def destroy_generation(self, generation_id: int) -> None:
        """Destroy every key of a generation, as ``destroy`` does."""
        with self._database.read() as session:
            alive = (HolderKey.generation_id == generation_id, HolderKey.file != "")
            files = session.scalars(select(HolderKey.file).where(*alive).distinct()).all()
        for batch in batches(files):
            for file in batch:
                self._files.erase_all(file)
            with self._database.write() as session:
                session.execute(delete(HolderKey).where(HolderKey.file.in_(batch)))
            self._files.unlink(batch)

    def generations(self) -> set[int]:
        """Return the generations that have a key which was not destroyed. Raises Busy."""
        with self._database.read() as session:
            return set(session.scalars(select(HolderKey.generation_id).where(HolderKey.file != "").distinct()))

    def last_generation(self) -> int:
        """Return the largest number of a generation that ever had a key here; 0: none had. Raises Busy."""
        with self._database.read() as session:
            return session.scalar(select(func.max(HolderKey.generation_id))) or 0

    def sweep(self, older_than: float) -> int:
        """Remove key files that no row names, last written so many seconds ago or earlier; return how many.

        A worker that died while it made keys leaves such a file.
        """
        swept = 0
        for names in batches(self._files.older_than(older_than)):
            unused = self._unused(names)
            for name in unused:
                with suppress(KeysMissing):  # another scheduler was first
                    self._files.erase_all(name)
            self._files.unlink(unused)
            swept += len(unused)
        return swept

    def __str__(self) -> str:
        return "the key store"

    def mark(self) -> str | None:
        """Return what ``set_mark`` wrote; None where it was never called. Raises Busy."""
        with self._database.read() as session:
            return session.scalar(select(KeyStoreMark.mark))

    def set_mark(self, mark: str) -> None:
        """Write to which installation the key store belongs. Raises Busy."""
        with self._database.write() as session:
            session.execute(delete(KeyStoreMark))
            session.execute(insert(KeyStoreMark), [{"mark": mark}])

    def blank(self) -> bool:
        """Return whether no key was ever made here. Raises Busy."""
        with self._database.read() as session:
            return session.scalar(select(HolderKey.id).limit(1)) is None

    def check(self) -> None:
        """Return at once: a database that answers can do what is needed."""

    @property
    def folder(self) -> Folder:
        """Return the folder of the key files."""
        return self._files.folder

    def close(self) -> None:
        self._database.close()

    def _fetch(self, ids: Iterable[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        with self._database.read() as session:
            for batch in batches(ids):
                for file, rows in _by_file(session, batch).items():
                    shares = self._files.read(file, (row.slot for row in rows))
                    found |= {row.id: _joined(row.share, shares[row.slot]) for row in rows if row.slot in shares}
        return found

    def _destroy(self, ids: list[str]) -> int:
        """Destroy the keys that are here; return how many of the others were never destroyed here."""
        with self._database.read() as session:
            known = session.scalar(select(func.count()).where(HolderKey.id.in_(ids))) or 0
            places = _by_file(session, ids)
        for file, rows in places.items():
            self._files.erase(file, (row.slot for row in rows))
        if places:
            with self._database.write() as session:
                session.execute(update(HolderKey).where(HolderKey.id.in_(ids)).values(share=b"", file="", slot=0))
        self._files.unlink(self._unused(places))
        return len(set(ids)) - known

    def _unused(self, names: Iterable[str] | Mapping[str, Any]) -> list[str]:
        """Return those of the files that no row names."""
        listed = list(names)
        with self._database.read() as session:
            used = set(session.scalars(select(HolderKey.file).where(HolderKey.file.in_(listed)).distinct()))
        return [name for name in listed if name not in used]


def _by_file(session: Session, ids: list[str]) -> dict[str, list[Any]]:
    """Return the rows of these keys, by the file of their other share."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    columns = (HolderKey.id, HolderKey.share, HolderKey.file, HolderKey.slot)
    for row in session.execute(select(*columns).where(HolderKey.id.in_(ids), HolderKey.file != "")):
        found[row.file].append(row)
    return found


def _joined(one: bytes, other: bytes) -> bytes:
    """Return the XOR of two keys or shares: key and share give the other share, both shares give the key."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(max(len(one), len(other)))
