"""Stores: files that are named by the sha256 of their content, in a folder on a disk or in a bucket."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, cast

from expunge_service.infra.files import PART, Chunk, DiskFolder, Folder

DIGEST = re.compile(r"[0-9a-f]{64}")


class Damaged(RuntimeError):
    """Stored bytes are missing, or are not those that were stored."""


@dataclass(frozen=True)
class StoredFile:
    """What was written: the sha256 (hex) that names the file, and its size in bytes."""

    digest: str
    size: int


def folder_at(place: Path | str) -> Folder:
    """Return the folder that a setting names: a path on a disk, or ``s3://bucket/prefix``.

    Raises SettingsError where the software for buckets is not installed.
    """
    if isinstance(place, Path):
        return DiskFolder(place)
    from expunge_service.infra.bucket import Bucket  # noqa: PLC0415 (obstore is an extra)

    return Bucket.at(place)


class Store:
    """Files named by the sha256 of their bytes, in a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    @classmethod
    def at(cls, place: Path | str) -> Store:
        """Open the store that a setting names, as ``folder_at``."""
        return cls(folder_at(place))

    def put(self, chunks: Iterable[Chunk]) -> StoredFile:
        """Write ``chunks`` durably. When this returns, the file survives a power cut.

        A file that is there already is written again: that heals it, and makes it young for the sweep.
        Raises OSError (disk full, no permission); then no file of that name exists because of this call.
        """
        parts = list(chunks)
        hasher = hashlib.sha256()
        for part in parts:
            hasher.update(part)
        stored = StoredFile(hasher.hexdigest(), sum(memoryview(part).nbytes for part in parts))
        self.folder.write(stored.digest, parts)
        return stored

    def open(self, digest: str) -> BinaryIO:
        """Open the file and check its bytes; return it at its beginning. The caller closes it. Raises Damaged.

        The bytes are hashed through the returned handle, so replacing the file afterwards has no effect.
        """
        try:
            file = self.folder.open(_named(digest))
        except FileNotFoundError:
            raise Damaged(f"file {digest} is missing from {self.folder}: restore it from a backup") from None
        if hashlib.file_digest(cast(BufferedIOBase, file), "sha256").hexdigest() != digest:
            file.close()
            raise Damaged(f"file {digest} in {self.folder} has other bytes: restore it from a backup")
        file.seek(0)
        return file

    def read(self, digest: str) -> bytes:
        """Return all bytes of the file, checked. Raises Damaged."""
        with self.open(digest) as file:
            return file.read()

    def holds(self, digest: str) -> bool:
        """Return whether there is a file of that name; its bytes are not checked."""
        return self.folder.holds(_named(digest))

    def delete(self, *digests: str) -> None:
        """Remove those of the files that are there."""
        self.folder.delete([_named(digest) for digest in digests])

    def sweep(self, keep: Container[str], older_than: float) -> int:
        """Remove half-written files and files not in ``keep`` that are older than ``older_than`` seconds.

        Returns how many. An update writes its file before the row that names it, so young files must stay.
        """
        orphans = self.orphans(keep, older_than)
        self.folder.delete(orphans)
        return len(orphans)

    def orphans(self, keep: Container[str], older_than: float) -> list[str]:
        """Return the names of the files that ``sweep`` would remove."""
        before = time.time() - older_than
        return [
            entry.name
            for entry in self.folder.entries()
            if entry.written_at <= before
            and (PART.fullmatch(entry.name) or (DIGEST.fullmatch(entry.name) and entry.name not in keep))
        ]


def _named(digest: str) -> str:
    """Return the name of the file with that digest. Raises ValueError for anything that is not a digest."""
    if not DIGEST.fullmatch(digest):
        raise ValueError("A store names files by sha256 in lower-case hex, and this is none.")
    return digest
