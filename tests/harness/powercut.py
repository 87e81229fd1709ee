"""What a power cut may leave of files: a recorder of the durable operations, and the states that are legal after them.

Killing a process cannot show a missing fsync, for the kernel keeps what it was given.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from expunge_service.infra.files import Files

State = dict[str, bytes]
"""path -> bytes"""


@dataclass(frozen=True)
class Operation:
    """``path``: the file or folder it was done to; a file is called by the name it was created under."""

    kind: str
    path: str
    data: bytes = b""
    target: str = ""
    offset: int = 0


@dataclass
class Recorded(Files):
    """Performs the operations and keeps their log. Several stores, and threads, may share one."""

    log: list[Operation] = field(default_factory=list)
    _open: dict[int, str] = field(default_factory=dict)
    _guard: threading.RLock = field(default_factory=threading.RLock)

    def create(self, path: Path) -> BinaryIO:
        with self._guard:
            file = super().create(path)
            self._open[file.fileno()] = str(path)
            self.log.append(Operation("create", str(path)))
            return file

    def open(self, path: Path) -> BinaryIO:
        """Open a file that was never renamed: files are named as when they were created."""
        with self._guard:
            file = super().open(path)
            self._open[file.fileno()] = str(path)
            return file

    def overwrite(self, file: BinaryIO, offset: int, data: bytes) -> None:
        with self._guard:
            self.log.append(Operation("overwrite", self._open[file.fileno()], data, offset=offset))
            super().overwrite(file, offset, data)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        with self._guard:
            self.log.append(Operation("write", self._open[file.fileno()], bytes(data)))
            super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        with self._guard:
            super().sync(file)
            self.log.append(Operation("sync", self._open[file.fileno()]))

    def rename(self, source: Path, target: Path) -> None:
        with self._guard:
            super().rename(source, target)  # first: one that fails has done nothing
            self.log.append(Operation("rename", str(source), target=str(target)))

    def link(self, source: Path, target: Path) -> None:
        with self._guard:
            super().link(source, target)
            self.log.append(Operation("link", str(source), target=str(target)))

    def sync_folder(self, folder: Path) -> None:
        with self._guard:
            super().sync_folder(folder)
            self.log.append(Operation("sync_folder", str(folder)))

    def unlink(self, path: Path) -> None:
        with self._guard:
            self.log.append(Operation("unlink", str(path)))
            super().unlink(path)


def states_after_power_cut(log: Sequence[Operation]) -> Iterator[State]:
    """Yield every legal set of files after the power was lost at the end of ``log``.

    Data that were not synced may be whole, missing, cut anywhere (here: in the middle), or zeros of the right length.
    Where a file was overwritten in place, each of its parts may be as before or as after. A name that was not made
    durable by a sync of its folder may be as before or as after, independently of the others. But a rename is atomic,
    as on every journalling filesystem: a file with a durable name always has one.
    """
    content, synced, durable, file_of = _replay(log)
    kept = set(durable.values()) & set(file_of.values())
    names = sorted(set(file_of) | set(durable))
    choices = [sorted({durable.get(name, ""), file_of.get(name, "")}) for name in names]
    for chosen in itertools.product(*choices):
        present = {name: file for name, file in zip(names, chosen, strict=True) if file}
        if not kept <= set(present.values()):
            continue
        bodies = [_bodies(content[file], synced[file]) for file in present.values()]
        for each in itertools.product(*bodies):
            yield dict(zip(present, each, strict=True))


def _replay(log: Sequence[Operation]) -> tuple[State, State, dict[str, str], dict[str, str]]:
    """Return content and synced content by file, the file by durable name, and the file by name."""
    content: State = {}
    synced: State = {}
    file_of: dict[str, str] = {}
    durable: dict[str, str] = {}
    for operation in log:
        path = operation.path
        if operation.kind == "create":
            content[path], synced[path], file_of[path] = b"", b"", path
        elif operation.kind == "write":
            content[path] += operation.data
        elif operation.kind == "overwrite":
            end = operation.offset + len(operation.data)
            content[path] = content[path][: operation.offset] + operation.data + content[path][end:]
        elif operation.kind == "sync":
            synced[path] = content[path]
        elif operation.kind == "rename":
            file_of[operation.target] = file_of.pop(path)
        elif operation.kind == "link":
            file_of[operation.target] = file_of[path]
        elif operation.kind == "unlink":
            file_of.pop(path, None)
        else:
            inside = {name for name in file_of | durable if Path(name).parent == Path(path)}
            durable = {name: file for name, file in durable.items() if name not in inside}
            durable |= {name: file for name, file in file_of.items() if name in inside}
    return content, synced, durable, file_of


def _bodies(content: bytes, synced: bytes) -> list[bytes]:
    if content == synced:
        return [synced]
    if len(content) == len(synced):  # overwritten in place: each part is as before or as after
        middle = len(content) // 2
        return sorted({synced, content, content[:middle] + synced[middle:], synced[:middle] + content[middle:]})
    return sorted({synced, content, content[: len(content) // 2], bytes(len(content))})
