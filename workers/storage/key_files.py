"""Key files: one share of every key, in files whose bytes are overwritten in place.

A key is two shares joined by XOR. One share is a row of the key store's database. A database keeps copies of what it
deletes: in its heap, in its write-ahead log, in its replicas. The other share is written in a key file only, so
overwriting it there destroys the key. One share alone says nothing about the key.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from service.infra.files import Files

SHARE_BYTES = 32
ERASED = bytes(SHARE_BYTES)


class KeyFileMissing(RuntimeError):
    """The key store knows keys of a file that is not in this process's key folder."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(
            f"There is no key file {name} in {folder}, though its keys were not destroyed. Let EXPUNGE_KEY_FOLDER "
            "name the one folder that all workers and schedulers share."
        )


class KeyFiles:
    """A folder of key files, shared by all workers and schedulers."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.folder = folder
        self._files = files or Files()

    def write(self, shares: Sequence[bytes]) -> str:
        """Write a new file with these shares, 32 bytes each; return its name once it is durable. Raises OSError."""
        self._make_folder()
        name = secrets.token_hex(8)
        with self._files.create(self.folder / name) as file:
            self._files.write(file, b"".join(shares))
            self._files.sync(file)
        self._files.sync_folder(self.folder)
        return name

    def read(self, name: str, slots: Iterable[int]) -> dict[int, bytes]:
        """Return the shares at these places, without those that were erased. Raises KeyFileMissing."""
        content = self._content(name)
        shares = {slot: content[slot * SHARE_BYTES : (slot + 1) * SHARE_BYTES] for slot in slots}
        return {slot: share for slot, share in shares.items() if share != ERASED}

    def erase(self, name: str, slots: Iterable[int]) -> None:
        """Overwrite these shares with zeros, durably. Raises KeyFileMissing, OSError."""
        with self._open(name) as file:
            for slot in slots:
                self._files.overwrite(file, slot * SHARE_BYTES, ERASED)
            self._files.sync(file)

    def erase_all(self, name: str) -> None:
        """Overwrite every share of a file. Raises KeyFileMissing, OSError."""
        with self._open(name) as file:
            self._files.overwrite(file, 0, bytes(file.seek(0, os.SEEK_END)))
            self._files.sync(file)

    def unlink(self, names: Iterable[str]) -> None:
        """Delete files whose shares were all erased, where they still exist. Raises OSError."""
        paths = [self.folder / name for name in names]
        for path in paths:
            self._files.unlink(path)
        if paths:
            self._files.sync_folder(self.folder)

    def older_than(self, seconds: float) -> Iterator[str]:
        """Yield the names of files that were written, or had a share erased, so many seconds ago or earlier."""
        before = time.time() - seconds
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            with suppress(FileNotFoundError):  # another process removed it
                if path.stat().st_mtime <= before:
                    yield path.name

    def _content(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise KeyFileMissing(self.folder, name) from None

    def _open(self, name: str) -> BinaryIO:
        try:
            return self._files.open(self.folder / name)
        except FileNotFoundError:
            raise KeyFileMissing(self.folder, name) from None

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.sync_folder(self.folder.parent)
