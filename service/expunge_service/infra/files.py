"""Folders of durable bytes by name: what each can do, and those on a disk; ``bucket`` has those in a bucket.

Expunge does every durable file operation on a disk by ``Files``. A test double records them and enumerates what a power
cut may leave behind, because killing a process cannot show a missing fsync.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeAlias

Chunk: TypeAlias = bytes | memoryview
PART = re.compile(r"\.[0-9a-f]{16}\.part")
MARK = "installation"
"""the file that says to which installation a folder belongs"""
BLOCK = 1 << 20
LOCK_SECONDS = 10.0
"""that an update of a file waits for another one of it"""
_MOUNTS = Path("/proc/self/mounts")


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


@dataclass(frozen=True)
class Entry:
    """A file of a folder: its name, and when it was written, in seconds since 1970 UTC."""

    name: str
    written_at: float


class Folder(ABC):
    """Bytes by name. A name appears with all its bytes, durable, or not at all.

    Every method raises OSError where the disk or the bucket fails; FileNotFoundError and FileExistsError are such.
    """

    overwrites_in_place: ClassVar[bool]
    """whether ``overwrite`` writes over the old bytes; a bucket stores another object"""

    @abstractmethod
    def __str__(self) -> str:
        """Return how the settings name this place."""

    @abstractmethod
    def inside(self, name: str) -> Folder:
        """Return the folder of that name in this one. It need not exist."""

    def promptly(self, seconds: int | None = None) -> Folder:  # noqa: ARG002 (of a bucket)
        """Return this folder for small files: no call waits longer than that, by default 10 s.

        A disk is as it is.
        """
        return self

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield every file, half-written ones too, and no folder."""

    @abstractmethod
    def holds(self, name: str) -> bool: ...

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open the file to be read from its beginning; the caller closes it. Raises FileNotFoundError."""

    @abstractmethod
    def write(self, name: str, chunks: Sequence[Chunk]) -> None:
        """Write the file durably, in place of one that has the name."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Write a small file durably. Raises FileExistsError where there is one."""

    @abstractmethod
    def add(self, name: str, chunks: Sequence[Chunk], *, lasting: bool = True) -> None:
        """Write a whole file durably under a name that is free, or not at all. Raises FileExistsError.

        ``lasting`` False: a power cut may take the name until the next ``sync``.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make every name durable that a process gave here, whichever it was."""

    @abstractmethod
    def overwrite(self, name: str, pieces: Mapping[int, bytes]) -> None:
        """Write each piece at its offset, over what is there, durably; no other copy of those bytes remains readable.

        Raises FileNotFoundError.
        """

    @abstractmethod
    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a small file by what ``change`` makes of it. Updates at the same time undo nothing of each other.

        ``change`` gets None where there is no file; it may be called several times, and the same bytes are written
        once. Readers see the file before or after. A power cut may leave the file before, or half of the one after.
        """

    @abstractmethod
    def rename(self, name: str, target: str) -> None:
        """Give the file another name, in place of one that has it. Raises FileNotFoundError."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete these files, durably, where they exist."""

    @abstractmethod
    def check(self) -> None:
        """Look whether the place can do what the methods promise. Raises ValueError with what to change."""

    def read(self, name: str) -> bytes:
        """Return all bytes of the file. Raises FileNotFoundError."""
        with self.open(name) as file:
            return file.read()

    def mark(self) -> str | None:
        """Return what ``set_mark`` wrote here; None where it was never called."""
        with suppress(FileNotFoundError):
            return self.read(MARK).decode(errors="replace")
        return None

    def set_mark(self, mark: str) -> None:
        """Write to which installation the folder belongs."""
        self.write(MARK, [mark.encode()])

    def blank(self) -> bool:
        """Return whether no file was ever written here."""
        return next(self.entries(), None) is None


class DiskFolder(Folder):
    """A folder on a disk. It is made when something is written into it."""

    overwrites_in_place = True

    def __init__(self, root: Path, disk: Files | None = None) -> None:
        self.root = root
        self.disk = disk or Files()

    def __str__(self) -> str:
        return str(self.root)

    def inside(self, name: str) -> DiskFolder:
        return DiskFolder(self.root / name, self.disk)

    def entries(self) -> Iterator[Entry]:
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            with suppress(FileNotFoundError):  # another process deleted it
                if path.is_file():
                    yield Entry(path.name, path.stat().st_mtime)

    def holds(self, name: str) -> bool:
        return (self.root / name).is_file()

    def open(self, name: str) -> BinaryIO:
        return (self.root / name).open("rb")

    def write(self, name: str, chunks: Sequence[Chunk]) -> None:
        self._make_root()
        part = self.root / f".{secrets.token_hex(8)}.part"
        try:
            self._write(part, chunks)
            self.disk.rename(part, self.root / name)
        except BaseException:
            self.disk.unlink(part)
            raise
        self.disk.sync_folder(self.root)

    def create(self, name: str, data: bytes) -> None:
        """Write the file under its own name: a power cut may leave half of it, under a name that is not used yet."""
        self._make_root()
        with self.disk.create(self.root / name) as file:
            self.disk.write(file, data)
            self.disk.sync(file)
        self.disk.sync_folder(self.root)

    def add(self, name: str, chunks: Sequence[Chunk], *, lasting: bool = True) -> None:
        self._make_root()
        part = self.root / f".{secrets.token_hex(8)}.part"
        try:
            self._write(part, chunks)
            self.disk.link(part, self.root / name)
        finally:
            self.disk.unlink(part)
        if lasting:
            self.disk.sync_folder(self.root)

    def sync(self) -> None:
        if self.root.is_dir():
            self.disk.sync_folder(self.root)

    def overwrite(self, name: str, pieces: Mapping[int, bytes]) -> None:
        with self.disk.open(self.root / name) as file:
            for offset, data in pieces.items():
                self.disk.overwrite(file, offset, data)
            self.disk.sync(file)

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        self._make_root()
        part = self.root / f".{secrets.token_hex(8)}.part"
        with _locked(self.root / f".{name}.lock"):
            before = None
            with suppress(FileNotFoundError):
                before = self.read(name)
            after = change(before)
            if after == before:
                return
            try:
                with self.disk.create(part) as file:
                    self.disk.write(file, after)
                self.disk.rename(part, self.root / name)
            except BaseException:
                self.disk.unlink(part)
                raise

    def rename(self, name: str, target: str) -> None:
        self.disk.rename(self.root / name, self.root / target)
        self.disk.sync_folder(self.root)

    def delete(self, names: Iterable[str]) -> None:
        paths = [self.root / name for name in names]
        for path in paths:
            self.disk.unlink(path)
        if paths and self.root.is_dir():
            self.disk.sync_folder(self.root)

    def check(self) -> None:
        """Return at once: ``expunge doctor`` looks at disks."""

    def _write(self, part: Path, chunks: Sequence[Chunk]) -> None:
        with self.disk.create(part) as file:
            for chunk in chunks:
                for block in _blocks(chunk):
                    self.disk.write(file, block)
            self.disk.sync(file)

    def _make_root(self) -> None:
        if self.root.is_dir():
            return
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.disk.sync_folder(self.root.parent)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which ends with the process. Raises TimeoutError where its holder hangs."""
    until = time.monotonic() + LOCK_SECONDS
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock", str(path)) from None
                time.sleep(0.001)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing does not: a child that was forked meanwhile has the file open


def filesystem_of(path: Path) -> tuple[str, str]:
    """Return the mount point that holds an absolute ``path``, and its kind (``ext4``). Empty where it is not known."""
    if not _MOUNTS.exists():
        return "", ""
    points = (line.split()[1:3] for line in _MOUNTS.read_text().splitlines())
    require_scope = [(point, kind) for point, kind in points if path.is_relative_to(point)]
    return max(require_scope, key=lambda mount: len(mount[0]), default=("", ""))


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) :]


def _blocks(chunk: bytes | memoryview) -> Iterator[memoryview]:
    view = memoryview(chunk).cast("B")
    for start in range(0, len(view), BLOCK):
        yield view[start : start + BLOCK]
