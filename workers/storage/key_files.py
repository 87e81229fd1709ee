"""Key files: one share of every key, in files whose bytes are overwritten in place.

A key is two shares joined by XOR. One share is a row of the key store's database. A database keeps copies of what it
deletes: in its heap, in its write-ahead log, in its replicas. The other share is written in a key file only, so
overwriting it there destroys the key. One share alone says nothing about the key.

The folder is one on a disk or one in a bucket. What the media below it keep of overwritten bytes is beyond us:
docs/operations/backup.md says which disks and buckets are fit.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from expunge.service.infra.files import MARK, Folder

SHARE_BYTES = 32
ERASED = bytes(SHARE_BYTES)


class KeysMissing(RuntimeError):
    """Keys that were not destroyed are not where this process looks for them."""


class KeyFiles:
    """A folder of key files, shared by all workers and schedulers."""

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
        """Delete files whose shares were all erased, where they still exist. Raises OSError."""
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
