"""Stored bytes survive a power cut at any moment, or were never promised."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from expunge_service.infra.files import DiskFolder, Files
from expunge_service.infra.stores import Damaged, Store
from tests.harness.files import path_in, root_of
from tests.harness.powercut import Recorded, states_after_power_cut

CONTENT = b"a checkpoint" * 1000


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_named_by_the_digest_of_its_bytes(tmp_path: Path) -> None:
    stored = Store.at(tmp_path).put([CONTENT[:5], CONTENT[5:]])
    assert (stored.digest, stored.size) == (digest_of(CONTENT), len(CONTENT))
    assert Store.at(tmp_path).read(stored.digest) == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == [stored.digest]


@pytest.mark.parametrize("change", ["flip", "truncate", "append", "remove"])
def test_opening_a_damaged_file_fails(tmp_path: Path, change: str) -> None:
    store = Store.at(tmp_path)
    digest = store.put([CONTENT]).digest
    path = path_in(store, digest)
    changed = {"flip": b"A" + CONTENT[1:], "truncate": CONTENT[:-1], "append": CONTENT + b"!"}
    path.unlink() if change == "remove" else path.write_bytes(changed[change])
    with pytest.raises(Damaged, match=digest):
        store.open(digest)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_only_digests_name_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="sha256"):
        Store.at(tmp_path).open(name)


def test_deleting_twice_is_the_same_as_once(tmp_path: Path) -> None:
    store = Store.at(tmp_path / "not-yet-there")
    store.delete(digest_of(CONTENT))
    digest = store.put([CONTENT]).digest
    store.delete(digest)
    store.delete(digest)
    assert list(root_of(store).iterdir()) == []


def test_the_sweep_takes_old_orphans_and_half_files_and_nothing_else(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    kept, orphan, young = (store.put([data]).digest for data in (b"kept", b"orphan", b"young"))
    (tmp_path / ".0123456789abcdef.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    for path in tmp_path.iterdir():
        if path.name != young:
            os.utime(path, (0, 0))
    assert store.sweep({kept}, older_than=60) == 2
    assert {path.name for path in tmp_path.iterdir()} == {kept, young, "notes.txt"}
    assert not path_in(store, orphan).exists()


def test_a_failing_disk_leaves_no_half_file(tmp_path: Path) -> None:
    class Full(Files):
        def sync(self, file: BinaryIO) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Store(DiskFolder(tmp_path, Full())).put([CONTENT])
    assert list(tmp_path.iterdir()) == []


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
    stored = Store(DiskFolder(tmp_path, files)).put([CONTENT])
    assert broken_promises(files, tmp_path, stored.digest) == []
    added = Recorded()
    DiskFolder(tmp_path / "journal", added).add(digest_of(CONTENT), [CONTENT[:7], CONTENT[7:]])
    assert broken_promises(added, tmp_path / "journal", digest_of(CONTENT)) == []


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_the_double_finds_a_missing_fsync(tmp_path: Path, forgotten: str) -> None:
    files = Recorded()
    stored = Store(DiskFolder(tmp_path, files)).put([CONTENT])
    files.log = [each for each in files.log if each.kind != forgotten]
    assert broken_promises(files, tmp_path, stored.digest) != []
