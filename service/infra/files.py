"""Durable bytes: files named by the sha256 of their content.

Expunge does every durable file operation by ``Files``. A test double records them and enumerates what a power cut may
leave behind, because killing a process cannot show a missing fsync.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from service.infra.fault_injection import crash_point

DIGEST = re.compile(r"[0-9a-f]{64}")
PART = re.compile(r"\.[0-9a-f]{16}\.part")
BLOCK = 1 << 20
_MOUNTS = Path("/proc/self/mounts")


class Damaged(RuntimeError):
    """Stored bytes are missing, or are not those that were stored."""


@dataclass(frozen=True)
class Stored:
    """What was written: the sha256 (hex) that names the file, and its size in bytes."""

    digest: str
    size: int


class Files:
    """The durable file operations, and no others."""

    def create(self, path: Path) -> BinaryIO:
        """Create a file that its owner alone can read. Raises FileExistsError."""
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)

    def open(self, path: Path) -> BinaryIO:
        """Open an existing file, to overwrite it in place. Raises FileNotFoundError."""
        return path.open("r+b", buffering=0)

    def overwrite(self, file: BinaryIO, offset: int, data: bytes) -> None:
        """Write ``data`` at ``offset`` bytes, over what is there; the file keeps its length."""
        file.seek(offset)
        _write_all(file, data)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        _write_all(file, data)

    def sync(self, file: BinaryIO) -> None:
        os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name. Raises FileExistsError."""
        target.hardlink_to(source)

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)


class Store:
    """A folder of files named by the sha256 of their bytes. Only complete, synced files get a name."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self.disk = files or Files()

    def put(self, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write ``chunks`` durably. When this returns, the file survives a power cut.

        Raises OSError (disk full, no permission); then no file of that name exists because of this call.
        """
        self._make_root()
        part = self.root / f".{secrets.token_hex(8)}.part"
        try:
            stored = self._write(part, chunks)
            self.disk.rename(part, self.path(stored.digest))
        except BaseException:
            self.disk.unlink(part)
            raise
        crash_point("store-renamed")
        self.disk.sync_folder(self.root)
        crash_point("store-folder-synced")
        return stored

    def path(self, digest: str) -> Path:
        """Return the path of the file with that digest. Raises ValueError for anything that is not a digest."""
        if not DIGEST.fullmatch(digest):
            raise ValueError("A store names files by sha256 in lower-case hex, and this is none.")
        return self.root / digest

    def open(self, digest: str) -> BinaryIO:
        """Open the file and check its bytes; return it at its beginning. The caller closes it. Raises Damaged.

        The bytes are hashed through the returned handle, so replacing the file afterwards changes nothing.
        """
        try:
            file = self.path(digest).open("rb")
        except FileNotFoundError:
            raise Damaged(f"file {digest} is missing from {self.root}: restore it from a backup") from None
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            file.close()
            raise Damaged(f"file {digest} in {self.root} has other bytes: restore it from a backup")
        file.seek(0)
        return file

    def read(self, digest: str) -> bytes:
        """Return all bytes of the file, checked. Raises Damaged."""
        with self.open(digest) as file:
            return file.read()

    def delete(self, digest: str) -> None:
        """Remove the file; nothing happens when there is none."""
        self.disk.unlink(self.path(digest))
        if self.root.is_dir():
            self.disk.sync_folder(self.root)

    def sweep(self, keep: Container[str], older_than: float) -> int:
        """Remove half-written files and files not in ``keep`` that are older than ``older_than`` seconds.

        Returns how many. An update writes its file before the row that names it, so young files must stay.
        """
        before = time.time() - older_than
        orphans = [path for path in self._entries() if self._orphan(path, keep, before)]
        for path in orphans:
            self.disk.unlink(path)
        if orphans:
            self.disk.sync_folder(self.root)
        return len(orphans)

    def _entries(self) -> Iterator[Path]:
        if self.root.is_dir():
            yield from self.root.iterdir()

    @staticmethod
    def _orphan(path: Path, keep: Container[str], before: float) -> bool:
        if not (PART.fullmatch(path.name) or (DIGEST.fullmatch(path.name) and path.name not in keep)):
            return False
        try:
            return path.stat().st_mtime <= before
        except FileNotFoundError:
            return False

    def _write(self, part: Path, chunks: Iterable[bytes | memoryview]) -> Stored:
        hasher, size = hashlib.sha256(), 0
        with self.disk.create(part) as file:
            for chunk in chunks:
                for block in _blocks(chunk):
                    self.disk.write(file, block)
                    hasher.update(block)
                    size += len(block)
                    crash_point("store-half-file")
            crash_point("store-written")
            self.disk.sync(file)
        crash_point("store-synced")
        return Stored(hasher.hexdigest(), size)

    def _make_root(self) -> None:
        if self.root.is_dir():
            return
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.disk.sync_folder(self.root.parent)


def filesystem_of(path: Path) -> tuple[str, str]:
    """Return the mount point that holds an absolute ``path``, and its kind (``ext4``). Empty where it is not known."""
    if not _MOUNTS.exists():
        return "", ""
    points = (line.split()[1:3] for line in _MOUNTS.read_text().splitlines())
    holding = [(point, kind) for point, kind in points if path.is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]), default=("", ""))


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) :]


def _blocks(chunk: bytes | memoryview) -> Iterator[memoryview]:
    view = memoryview(chunk).cast("B")
    for start in range(0, len(view), BLOCK):
        yield view[start : start + BLOCK]
