"""Stored bytes survive a power cut at any moment, or were never promised."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from service.storage import Damaged, Files, Store

CONTENT = b"a checkpoint" * 1000


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_named_by_the_digest_of_its_bytes(tmp_path: Path) -> None:
    stored = Store(tmp_path).put([CONTENT[:5], CONTENT[5:]])
    assert (stored.digest, stored.size) == (digest_of(CONTENT), len(CONTENT))
    assert Store(tmp_path).read(stored.digest) == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == [stored.digest]


@pytest.mark.parametrize("change", ["flip", "truncate", "append", "remove"])
def test_opening_a_damaged_file_fails(tmp_path: Path, change: str) -> None:
    store = Store(tmp_path)
    digest = store.put([CONTENT]).digest
    path = store.path(digest)
    changed = {"flip": b"A" + CONTENT[1:], "truncate": CONTENT[:-1], "append": CONTENT + b"!"}
    path.unlink() if change == "remove" else path.write_bytes(changed[change])
    with pytest.raises(Damaged, match=digest):
        store.open(digest)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_only_digests_name_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="sha256"):
        Store(tmp_path).path(name)


def test_deleting_twice_is_the_same_as_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "not-yet-there")
    store.delete(digest_of(CONTENT))
    digest = store.put([CONTENT]).digest
    store.delete(digest)
    store.delete(digest)
    assert list(store.root.iterdir()) == []


def test_the_sweep_takes_old_orphans_and_half_files_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept, orphan, young = (store.put([data]).digest for data in (b"kept", b"orphan", b"young"))
    (tmp_path / ".0123456789abcdef.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    for path in tmp_path.iterdir():
        if path.name != young:
            os.utime(path, (0, 0))
    assert store.sweep({kept}, older_than=60) == 2
    assert {path.name for path in tmp_path.iterdir()} == {kept, young, "notes.txt"}
    assert not store.path(orphan).exists()


def test_a_failing_disk_leaves_no_half_file(tmp_path: Path) -> None:
    class Full(Files):
        def sync(self, file: BinaryIO) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Store(tmp_path, Full()).put([CONTENT])
    assert list(tmp_path.iterdir()) == []


@dataclass
class Recorded(Files):
    """Performs the operations and keeps their log: (operation, file or folder, what else)."""

    log: list[tuple[str, str, object]] = field(default_factory=list)

    def create(self, path: Path) -> BinaryIO:
        self.log.append(("create", str(path), None))
        return super().create(path)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        self.log.append(("write", str(file.name if isinstance(file.name, str) else self._last()), bytes(data)))
        super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        self.log.append(("sync", self._last(), None))
        super().sync(file)

    def rename(self, source: Path, target: Path) -> None:
        self.log.append(("rename", str(source), str(target)))
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self.log.append(("sync_folder", str(folder), None))
        super().sync_folder(folder)

    def unlink(self, path: Path) -> None:
        self.log.append(("unlink", str(path), None))
        super().unlink(path)

    def _last(self) -> str:
        return next(path for operation, path, _ in reversed(self.log) if operation == "create")


def states_after_power_cut(log: list[tuple[str, str, object]]) -> Iterator[dict[str, bytes]]:
    """Every legal folder after power was lost at the end of ``log``.

    Data that were not synced may be whole, missing, or cut anywhere (here: in the middle). Names that were not
    made durable by a sync of their folder may be as before or as after, each on its own.
    """
    content: dict[str, bytes] = {}
    synced: dict[str, bytes] = {}
    file_of: dict[str, str] = {}  # name -> file (files are called by the name they were created under)
    durable: dict[str, str] = {}
    for operation, path, extra in log:
        if operation == "create":
            content[path], synced[path], file_of[path] = b"", b"", path
        elif operation == "write":
            assert isinstance(extra, bytes)
            content[path] += extra
        elif operation == "sync":
            synced[path] = content[path]
        elif operation == "rename":
            file_of[str(extra)] = file_of.pop(path)
        elif operation == "unlink":
            file_of.pop(path, None)
        else:
            durable = dict(file_of)
    names = sorted(set(file_of) | set(durable))
    choices = [{durable.get(name), file_of.get(name)} for name in names]
    for chosen in itertools.product(*choices):
        present = {name: file for name, file in zip(names, chosen, strict=True) if file is not None}
        kept = [{synced[file], content[file], content[file][: len(content[file]) // 2]} for file in present.values()]
        for bodies in itertools.product(
            *(k if synced[f] != content[f] else {synced[f]} for k, f in zip(kept, present.values(), strict=True))
        ):
            yield dict(zip(present, bodies, strict=True))


def broken_promises(files: Recorded, root: Path, digest: str) -> list[str]:
    """What goes wrong over all prefixes of the log: a named file of other bytes, or a promised file not there."""
    found = []
    for end in range(len(files.log) + 1):
        for state in states_after_power_cut(files.log[:end]):
            named = {Path(name).name: data for name, data in state.items() if not Path(name).name.startswith(".")}
            found += ["other bytes" for name, data in named.items() if digest_of(data) != name]
            if end == len(files.log) and digest not in named:
                found.append("lost")
    return found


def test_no_power_cut_leaves_a_named_file_with_other_bytes_or_loses_a_promised_one(tmp_path: Path) -> None:
    files = Recorded()
    stored = Store(tmp_path, files).put([CONTENT])
    assert broken_promises(files, tmp_path, stored.digest) == []


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_the_double_finds_a_missing_fsync(tmp_path: Path, forgotten: str) -> None:
    files = Recorded()
    stored = Store(tmp_path, files).put([CONTENT])
    files.log = [entry for entry in files.log if entry[0] != forgotten]
    assert broken_promises(files, tmp_path, stored.digest) != []
