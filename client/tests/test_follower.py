"""The follower by itself: swaps under load, reports what is in use, deletes what is not."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from expunge_client import Expunge, Follower, NotAuthentic, Version

VERSIONS = 30


class Service:
    """A model whose current version is ``number``; its file says which it is."""

    def __init__(self) -> None:
        self.number, self.reports, self.damaged, self.away = 1, list[int](), False, False
        self.more: dict[str, str] = {}

    def content(self, number: int) -> bytes:
        return b"version %d " % number * 1000

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("away")
        number, path = self.number, request.url.path
        digest = hashlib.sha256(self.content(number)).hexdigest()
        if path.endswith("/consumers/api-1"):
            self.reports.append(int(request.content.rpartition(b":")[2].strip(b"} ")))
            return httpx.Response(200, json={"name": "api-1", "version": number, "status": "current"})
        if path.endswith("/versions/current"):
            if request.headers.get("If-None-Match") == f'"{digest}"':
                return httpx.Response(304)
            facts = {"model": "digits", "number": number, "checkpoint_sha256": digest, **self.more}
            return httpx.Response(200, json=facts, headers={"ETag": f'"{digest}"'})
        if path.endswith(f"/versions/{number}/checkpoint"):
            return httpx.Response(200, content=b"other" if self.damaged else self.content(number))
        return httpx.Response(410, json={"code": "version_superseded", "detail": "Superseded."})


def opened(path: Path, version: Version) -> int:
    words = path.read_bytes().split()
    assert int(words[1]) == version["number"]
    return version["number"]


class ArchiveService(Service):
    """A model of several files; ``same``: from which version on all have the same bytes."""

    def __init__(self, same: int = VERSIONS) -> None:
        super().__init__()
        self.same, self.name = same, "en/words.json"
        self.more = {"checkpoint_suffix": "zip"}

    def content(self, number: int) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr(zipfile.ZipInfo(self.name), f'{{"words": {min(number, self.same)}}}')
            file.writestr(zipfile.ZipInfo("model.txt"), super().content(min(number, self.same)))
        return buffer.getvalue()


def folder_opened(path: Path, version: Version) -> Path:
    assert sorted(each.relative_to(path).as_posix() for each in path.rglob("*.*")) == ["en/words.json", "model.txt"]
    return path


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def follower(service: Service, tmp_path: Path) -> Follower[int]:
    expunge = Expunge("http://here", "exp_key", httpx.MockTransport(service))
    return Follower(expunge, "digits", "api-1", opened, tmp_path / "served")


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "served").iterdir()}


def eventually(enough: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not enough():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_no_call_is_dropped_and_none_changes_version_while_thirty_versions_pass(
    service: Service, follower: Follower[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge_client.follower.POLL_SECONDS", 0.005)
    ended, answered, faults = threading.Event(), list[int](), list[Any]()

    def load() -> None:
        try:
            while not ended.is_set():
                with follower.serving() as served:
                    before = served.model
                    time.sleep(0.001)
                    assert served.model == before == served.version["number"]
                answered.append(before)
        except BaseException as error:  # the test must see it
            faults.append(error)

    with follower:
        callers = [threading.Thread(target=load) for _ in range(8)]
        for caller in callers:
            caller.start()
        for number in range(2, VERSIONS + 1):
            service.number = number
            eventually(lambda: number in service.reports[-1:])  # noqa: B023
        ended.set()
        for caller in callers:
            caller.join()
    assert not faults
    assert set(answered) == set(range(1, VERSIONS + 1))
    assert service.reports == sorted(service.reports)


def test_an_old_version_in_use_is_what_is_reported_and_its_file_stays(
    service: Service, follower: Follower[int], tmp_path: Path
) -> None:
    follower.start()
    with follower.serving() as old:
        first = files(tmp_path)
        service.number = 2
        follower.look()
        with follower.serving() as new:
            assert (old.model, new.model) == (1, 2)
        assert set(service.reports) == {1}
        assert files(tmp_path) > first
    follower.look()
    assert service.reports[-1] == 2
    assert len(files(tmp_path)) == 1 and not files(tmp_path) & first, "a superseded checkpoint is deleted"
    follower.stop()


def test_files_of_a_process_that_died_are_deleted(follower: Follower[int], tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "old.safetensors").write_bytes(b"somebody")
    (tmp_path / "served" / "old.safetensors.part").write_bytes(b"somebody")
    follower.start()
    follower.stop()
    assert len(files(tmp_path)) == 1 and "old.safetensors" not in files(tmp_path)


def test_a_librarys_own_file_keeps_its_suffix(service: Service, follower: Follower[int], tmp_path: Path) -> None:
    service.more = {"checkpoint_suffix": "lightgbm.txt"}
    follower.start()
    service.number = 2
    follower.look()
    follower.stop()
    (name,) = files(tmp_path)
    assert name.endswith(".lightgbm.txt") and name[:64] == hashlib.sha256(service.content(2)).hexdigest()


def test_several_files_are_unpacked_into_a_folder_that_leaves_with_its_version(tmp_path: Path) -> None:
    service = ArchiveService()
    expunge = Expunge("http://here", "exp_key", httpx.MockTransport(service))
    follower = Follower(expunge, "digits", "api-1", folder_opened, tmp_path / "served")
    follower.start()
    with follower.serving() as old:
        service.number = 2
        follower.look()
        assert (old.model / "en" / "words.json").read_text() == '{"words": 1}', "a call still reads it"
        assert len(files(tmp_path)) == 4 and set(service.reports) == {1}
    follower.look()
    follower.stop()
    digest = hashlib.sha256(service.content(2)).hexdigest()
    assert files(tmp_path) == {digest, f"{digest}.zip"} and service.reports[-1] == 2
    with follower.serving() as served:
        assert served.model == tmp_path / "served" / digest
        assert (served.model / "en" / "words.json").read_text() == '{"words": 2}'


def test_a_folder_that_a_process_left_is_unpacked_again(tmp_path: Path) -> None:
    service = ArchiveService()
    digest = hashlib.sha256(service.content(1)).hexdigest()
    for name in (digest, f"{digest}.part", "0" * 64, "1" * 64 + ".part", "yours"):
        (tmp_path / "served" / name / "en").mkdir(parents=True)
        (tmp_path / "served" / name / "model.txt").write_bytes(b"half")
    (tmp_path / "served" / ("2" * 64 + ".lightgbm.txt")).write_bytes(b"of when the recipe published one file")
    (tmp_path / "served" / ("3" * 64)).symlink_to(tmp_path)
    expunge = Expunge("http://here", "exp_key", httpx.MockTransport(service))
    follower = Follower(expunge, "digits", "api-1", folder_opened, tmp_path / "served")
    with follower, follower.serving() as served:
        assert (served.model / "model.txt").read_bytes() == b"version 1 " * 1000
    assert files(tmp_path) == {digest, f"{digest}.zip", "yours"} and tmp_path.exists()


def test_two_versions_of_the_same_bytes_share_a_folder(tmp_path: Path) -> None:
    """A call of the first reads on while the second is served."""
    service = ArchiveService(same=1)
    expunge = Expunge("http://here", "exp_key", httpx.MockTransport(service))
    follower = Follower(expunge, "digits", "api-1", folder_opened, tmp_path / "served")
    with follower, follower.serving() as old:
        inode = (old.model / "model.txt").stat().st_ino
        service.number, follower._etag = 2, None
        follower.look()
        with follower.serving() as new:
            assert (old.version["number"], new.version["number"]) == (1, 2)
            assert new.model == old.model and (old.model / "model.txt").stat().st_ino == inode


def test_a_name_that_leads_elsewhere_is_not_unpacked_and_the_last_version_served(tmp_path: Path) -> None:
    service = ArchiveService()
    expunge = Expunge("http://here", "exp_key", httpx.MockTransport(service))
    with Follower(expunge, "digits", "api-1", folder_opened, tmp_path / "served") as follower:
        service.number, service.name = 2, "../../words.json"
        with pytest.raises(NotAuthentic, match=r"'../../words.json'"):
            follower.look()
        with follower.serving() as served:
            assert served.version["number"] == 1
    assert not list(tmp_path.rglob("words.json"))[1:] and not (tmp_path / "words.json").exists()


def test_the_last_version_is_served_while_the_service_is_away_or_sends_damaged_bytes(
    service: Service, follower: Follower[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    follower.start()
    service.number, service.damaged = 2, True
    with pytest.raises(NotAuthentic):
        follower.look()
    with follower.serving() as served:
        assert served.model == 1
    assert len(files(tmp_path)) == 1, "nothing damaged is left"
    service.damaged = False
    follower.look()
    with follower.serving() as served:
        assert served.model == 2
    follower.stop()


def test_before_it_is_started_nothing_is_served(follower: Follower[int]) -> None:
    with pytest.raises(RuntimeError, match="start"), follower.serving():
        pass
