"""A folder in a bucket keeps the promises of a folder on a disk: one suite for both, on a real S3 server."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest

from expunge_service.audit.witness import Epoch, Witness, WitnessedHead, WitnessedVersion
from expunge_service.infra import files
from expunge_service.infra.files import MARK, DiskFolder, Folder
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.infra.stores import Damaged, Store, folder_at
from tests.harness.s3 import S3, silent

LARGE = bytes(range(256)) * 8192
"""2 MiB: more than is held in memory when it is opened"""


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "disk":
        return DiskFolder(tmp_path / "folder")
    return folder_at(str(request.getfixturevalue("bucket")))


def names(folder: Folder) -> list[str]:
    return sorted(entry.name for entry in folder.entries())


@pytest.mark.parametrize("content", [b"", b"small", LARGE])
def test_what_was_written_is_read_and_replaced_as_a_whole(folder: Folder, content: bytes) -> None:
    folder.write("name", [content[:3], content[3:]])
    assert folder.read("name") == content and folder.holds("name")
    with folder.open("name") as file:
        assert file.read(4) == content[:4]
    folder.write("name", [b"another"])
    assert folder.read("name") == b"another"


def test_what_is_not_there_is_said_to_be_missing(folder: Folder) -> None:
    assert names(folder) == [] and not folder.holds("name") and folder.blank()
    for act in (
        lambda: folder.read("name"),
        lambda: folder.overwrite("name", {0: b"x"}),
        lambda: folder.rename("name", "other"),
    ):
        with pytest.raises(FileNotFoundError):
            act()
    folder.delete(["name"])
    folder.delete([])


def test_creating_needs_a_free_name(folder: Folder) -> None:
    folder.create("name", b"first")
    with pytest.raises(FileExistsError):
        folder.create("name", b"second")
    assert folder.read("name") == b"first"


def test_a_file_moves_over_another_and_its_old_name_is_free(folder: Folder) -> None:
    folder.write("draft", [b"new"])
    folder.write("final", [b"old"])
    folder.rename("draft", "final")
    assert (names(folder), folder.read("final")) == (["final"], b"new")


def test_folders_inside_are_apart(folder: Folder) -> None:
    folder.write("name", [b"outer"])
    folder.inside("inner").write("name", [b"inner"])
    assert (names(folder), names(folder.inside("inner"))) == (["name"], ["name"])
    assert folder.read("name") == b"outer" and folder.inside("inner").read("name") == b"inner"
    assert str(folder.inside("inner")) == f"{folder}/inner"


def test_two_who_overwrite_different_parts_at_once_undo_nothing(folder: Folder) -> None:
    parts = 24
    folder.create("shares", b"s" * parts)
    workers = [threading.Thread(target=folder.overwrite, args=("shares", {place: b"\0"})) for place in range(parts)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert folder.read("shares") == bytes(parts)


def test_updates_at_the_same_time_undo_nothing_of_each_other(folder: Folder) -> None:
    def add(place: int) -> None:
        folder.update("list", lambda before: (before or b"") + bytes([place]))

    workers = [threading.Thread(target=add, args=(place,)) for place in range(24)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(folder.read("list")) == list(range(24))


def test_publishers_that_note_at_once_are_all_told_of_by_one_read(folder: Folder) -> None:
    models = [f"{number:032x}" for number in range(8)]

    def publish(model_id: str) -> None:
        witness = Witness(folder)
        for number in (1, 2):
            witness.release(model_id, number, f"{model_id}-{number}")

    workers = [threading.Thread(target=publish, args=(model_id,)) for model_id in models]
    for worker in workers:
        worker.start()
    Witness(folder).note_head(0, WitnessedHead(5, "root"))
    for worker in workers:
        worker.join()
    newest = Witness(folder).newest()
    assert newest.versions == {model_id: WitnessedVersion(2, f"{model_id}-2") for model_id in models}
    assert newest.head == WitnessedHead(5, "root")
    Witness(folder).begin(Epoch(1, 5))
    begun = Witness(folder).newest()
    assert (begun.epoch, begun.head, begun.versions) == (1, None, {}) and begun.since != newest.since
    Witness(folder).note_head(0, WitnessedHead(6, "late"))
    assert Witness(folder).newest() == begun, "the head of a signer that slept through a restore"


def test_a_process_that_hangs_while_it_updates_a_file_hangs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    folder = DiskFolder(tmp_path)
    with files._locked(tmp_path / ".list.lock"), pytest.raises(TimeoutError, match="another process holds the lock"):
        folder.update("list", lambda _: b"late")
    folder.update("list", lambda before: b"first" if before is None else b"")
    assert folder.read("list") == b"first"


def test_a_store_names_by_digest_refuses_other_bytes_and_sweeps_orphans(folder: Folder) -> None:
    store = Store(folder)
    kept, orphan = store.put([b"kept"]), store.put([LARGE])
    assert store.read(orphan.digest) == LARGE and orphan.size == len(LARGE)
    assert store.sweep({kept.digest}, older_than=3600) == 0
    assert store.sweep({kept.digest}, older_than=-5) == 1
    assert names(folder) == [kept.digest]
    folder.write(kept.digest, [b"other"])
    with pytest.raises(Damaged, match=kept.digest):
        store.read(kept.digest)
    assert store.put([b"kept"]) == kept and store.read(kept.digest) == b"kept", "writing again heals"
    store.delete(kept.digest)
    with pytest.raises(Damaged, match="missing"):
        store.open(hashlib.sha256(b"kept").hexdigest())


def test_a_fit_bucket_passes_and_one_that_keeps_versions_is_refused(s3_server: S3, bucket: str) -> None:
    folder = folder_at(bucket)
    folder.set_mark("mark")
    folder.check()
    assert folder.mark() == "mark"
    versioned = folder_at("s3://versioned/prefix")
    versioned.set_mark("mark")
    s3_server.keep_versions("versioned")
    with pytest.raises(ValueError, match="keeps old versions"):
        versioned.check()


def test_a_server_that_ignores_conditions_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_at(bucket)
    folder.set_mark("mark")
    put = folder._store.put  # type: ignore[attr-defined]

    class Careless:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def put(self, path: str, data: bytes, mode: object = None, use_multipart: bool = False) -> object:
            return put(path, data, use_multipart=use_multipart)

    real = folder._store  # type: ignore[attr-defined]
    monkeypatch.setattr(folder, "_store", Careless())
    with pytest.raises(ValueError, match="ignores conditions"):
        folder.check()


def test_a_bucket_that_does_not_answer_is_an_error_of_the_machine(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(OSError, match="the bucket did not do it") as error:
        folder_at(bucket).read(MARK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seconds", [2, pytest.param(None, marks=pytest.mark.drill)])
def test_a_file_that_a_transaction_waits_for_is_given_up_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, seconds: int | None
) -> None:
    """Intake waits for the publication that waits for it. Files of models have 300 seconds."""
    bucket = pytest.importorskip("expunge_service.infra.bucket", reason="unverified here: obstore is not installed")
    assert bucket.PROMPT_SECONDS <= 10
    if seconds is not None:
        monkeypatch.setattr(bucket, "PROMPT_SECONDS", seconds)
    with silent() as url:
        updates = Witness(folder_at(url)).updates
        for call in (lambda: updates.add("m.1.draft", [b"x"]), lambda: updates.holds("m.1.release")):
            began = time.monotonic()
            with pytest.raises(OSError, match="the bucket did not do it"):
                call()
            assert time.monotonic() - began < (seconds or 10) + 2


@pytest.mark.parametrize("wrong", ["gs://bucket/prefix", "s3:///prefix", "file:///folder"])
def test_other_urls_are_no_place(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"EXPUNGE_STORE: .* s3://bucket/prefix"):
        Settings(store=wrong)


def test_a_place_in_a_bucket_is_kept_as_it_is_and_a_folder_is_a_path() -> None:
    settings = Settings(store="s3://bucket/prefix/", private_store="/srv/private")
    assert settings.store == "s3://bucket/prefix" and settings.private_store == Path("/srv/private")
    assert Path("/srv/private") in settings.folders and len(settings.folders) == 3
