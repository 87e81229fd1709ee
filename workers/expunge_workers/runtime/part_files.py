"""The files of parts that an engine trains, sealed: in a folder on a disk, or a bucket, that both sides reach.

Each begins with the name of its part:

- ``part``: what is to be done: code, settings, seed, other files; it is written last, when all that it names is there
- ``rows-0`` and so on: the rows of those who stay, what was mapped of them, and what the part before left
- ``asked``: nothing; a worker asked for the part when it was written
- ``checkpoint``, which the program writes: where the training goes on from
- ``verdict``, which the program writes: what the training answered, and the bytes that it made

All but ``asked`` are encrypted under a key of the part alone. A file opens under its own part and name alone, so that
none can be exchanged for another.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge_service.infra.files import Folder
from expunge_service.infra.stores import Damaged, folder_at
from expunge_workers.runtime.jobs import ON_DISK
from expunge_workers.runtime.world import seal
from expunge_workers.storage import Sealer

PART, ASKED, CHECKPOINT, VERDICT, ROWS = "part", "asked", "checkpoint", "verdict", "rows-{}"
LENGTH_BYTES = 8
"""before the words of a file, which say how long these are; its bytes follow them"""


def folder_of(place: str) -> Folder:
    """Return the folder at a place: a path, or the URL of a prefix in a bucket."""
    return folder_at(place if "://" in place else Path(place))


def delete_unasked(place: str, seconds: float) -> None:
    """Delete the files of every part there that no worker has asked for since so long."""
    folder, end = folder_of(place), f".{ASKED}"
    entries = [*folder.entries()]
    asked = {entry.name.removesuffix(end): entry.written_at for entry in entries if entry.name.endswith(end)}
    late = {part for part, at in asked.items() if time.time() - at >= seconds}
    folder.delete([entry.name for entry in entries if entry.name.partition(".")[0] in late])


@dataclass(frozen=True)
class PartFiles:
    """The files of the part of this name, among those of others."""

    name: str
    folder: Folder
    sealer: Sealer

    @classmethod
    def at(cls, place: str, name: str, key: bytes) -> PartFiles:
        return cls(name, folder_of(place), Sealer(key))

    def hand_over(self, order: Mapping[str, Any], files: Mapping[str, int], aside: Mapping[str, int] | None) -> None:
        """Write what the part is given, unless it was; ``files`` and ``aside`` are sealed files in memory by name."""
        if self._is_handed_over():
            return
        handles = {**files, **(aside or {})}
        names = {name: ROWS.format(number) for number, name in enumerate(handles)}
        for name, handle in handles.items():
            with _mapped(handle) as data:
                # Arrays that are larger than memory are encrypted, under a key that stands in the file of their rows.
                sealed = data if name.startswith(ON_DISK) else self.sealer.seal(self._file(names[name]), data)
                self.folder.write(self._file(names[name]), [sealed])
        given = {"files": {name: names[name] for name in files}}
        scored = {"aside": None if aside is None else {name: names[name] for name in aside}}
        self._write(PART, {**order, **given, **scored})

    def _is_handed_over(self) -> bool:
        """Return whether all was; what was handed over under a key that is gone is removed."""
        with suppress(FileNotFoundError):
            try:
                self.order()
                return True
            except Damaged:
                self.remove()
        return False

    def order(self) -> dict[str, Any]:
        """Return what is to be done. Raises FileNotFoundError, Damaged."""
        return self._read(PART)[0]

    @contextmanager
    def given(self, names: Mapping[str, str]) -> Iterator[dict[str, int]]:
        """Yield these files as sealed files in memory, or on this machine's disk. Raises Damaged."""
        with ExitStack() as stack:
            handles = {}
            for name, file in names.items():
                handles[name] = self._on_disk(file) if name.startswith(ON_DISK) else seal(self._opened(file))
                stack.callback(os.close, handles[name])
            yield handles

    def keep_checkpoint(self, words: Mapping[str, Any], data: bytes) -> None:
        if self.folder.holds(self._file(PART)):  # nothing is left where the part was removed
            self._write(CHECKPOINT, words, data)

    def checkpoint(self) -> tuple[dict[str, Any], bytes] | None:
        """Return what ``keep_checkpoint`` kept last. Raises Damaged."""
        return self._read(CHECKPOINT) if self.folder.holds(self._file(CHECKPOINT)) else None

    def answer(self, words: Mapping[str, Any], data: bytes) -> None:
        if self.folder.holds(self._file(PART)):
            self._write(VERDICT, words, data)

    def verdict(self) -> tuple[dict[str, Any], bytes] | None:
        """Return what the program answered; None: nothing yet. Raises Damaged: another than it wrote these bytes."""
        return self._read(VERDICT) if self.folder.holds(self._file(VERDICT)) else None

    def ask(self) -> None:
        """Note that a worker still asks for the part."""
        self.folder.write(self._file(ASKED), [b""])

    def are_answered(self) -> bool:
        return self.folder.holds(self._file(VERDICT))

    def asked_at(self) -> float | None:
        """Return when a worker last asked for the part, in seconds since 1970 UTC; None: it was removed."""
        return self._written_at(ASKED)

    def unasked_seconds(self) -> float:
        """Return for how long no worker has asked for the part; infinite where it was removed."""
        at = self.asked_at()
        return float("inf") if at is None else time.time() - at

    def checkpoint_at(self) -> float | None:
        """Return when the last checkpoint was written, as ``asked_at``; None: there is none."""
        return self._written_at(CHECKPOINT)

    def _written_at(self, name: str) -> float | None:
        times = (entry.written_at for entry in self.folder.entries() if entry.name == self._file(name))
        return next(times, None)

    def remove(self) -> None:
        """Delete every file of the part; what is to be done goes first, so that nobody begins with half of it."""
        self.folder.delete([self._file(PART)])
        names = [entry.name for entry in self.folder.entries()]
        self.folder.delete([name for name in names if name.partition(".")[0] == self.name])

    def _write(self, name: str, words: Mapping[str, Any], data: bytes = b"") -> None:
        text = json.dumps(words).encode()
        whole = b"".join((len(text).to_bytes(LENGTH_BYTES, "little"), text, data))
        self.folder.write(self._file(name), [self.sealer.seal(self._file(name), whole)])

    def _read(self, name: str) -> tuple[dict[str, Any], bytes]:
        whole = self._opened(name)
        end = LENGTH_BYTES + int.from_bytes(whole[:LENGTH_BYTES], "little")
        return json.loads(whole[LENGTH_BYTES:end]), whole[end:]

    def _opened(self, name: str) -> bytes:
        return self.sealer.open(self._file(name), self.folder.read(self._file(name)))

    def _on_disk(self, name: str) -> int:
        """Return a descriptor of a copy without a name on this machine's disk, for reading alone."""
        with self.folder.open(self._file(name)) as source, tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(source, copy, 1 << 22)
            copy.flush()
            return os.open(f"/proc/self/fd/{copy.fileno()}", os.O_RDONLY | os.O_CLOEXEC)

    def _file(self, name: str) -> str:
        return f"{self.name}.{name}"


@contextmanager
def _mapped(handle: int) -> Iterator[memoryview]:
    """Yield what is in a file, without a copy."""
    if not os.fstat(handle).st_size:
        yield memoryview(b"")
        return
    with mmap.mmap(handle, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        yield view
