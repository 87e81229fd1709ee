"""The follower by itself: swaps under load, reports what is in use, deletes what is not."""

from __future__ import annotations

import hashlib
import threading
import time
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
