"""What is shown beside a request whose worker was lost: the phase, and the memory in which it ran."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from expunge_service.infra.tables import Generation
from expunge_workers.runtime import heartbeat
from tests.workers.worlds import World

GREAT = 256 * 2**20
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_the_memory_that_is_told_is_the_present_one_not_the_greatest() -> None:
    before = heartbeat.resident_mebibytes() or 0
    room = mmap.mmap(-1, GREAT)
    room.write(bytes(GREAT))
    assert (heartbeat.resident_mebibytes() or 0) > before + 200
    room.close()
    assert (heartbeat.resident_mebibytes() or 0) < before + 100


@ON_SQLITE
def test_a_beat_writes_the_phase_and_the_present_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    model_id = world.register()
    job = world.claim(model_id)
    assert job is not None
    beating = world.pulse()
    beating.hold(job.lease, job.generation_id)
    beating.phase("train")
    monkeypatch.setattr(heartbeat, "resident_mebibytes", lambda: 123)
    beating.beat()
    assert [row.phase for row in world.rows_of(Generation)] == ["train at 123 MiB"]
    monkeypatch.setattr(heartbeat, "resident_mebibytes", lambda: None)
    beating.beat()
    assert [row.phase for row in world.rows_of(Generation)] == ["train"]


@ON_SQLITE
def test_what_follows_a_beat_delays_none_and_may_fail(world: World) -> None:
    """A store that hangs: the lease of what the worker computes meanwhile is renewed."""
    beats, hangs, done = threading.Semaphore(0), threading.Event(), threading.Event()
    pulse = heartbeat.HeartbeatSender(world.database, "here", "worker", 0.3, clock=lambda: beats.release() or 0.0)

    def fail() -> None:
        raise OSError("the store does not answer")

    pulse.after_beats = [fail, lambda: hangs.wait(60), done.set]
    pulse.start()
    assert all(beats.acquire(timeout=30) for _ in range(4)) and not done.is_set()
    hangs.set()
    assert done.wait(30), "what comes after one that failed is done too"
    pulse.stop()


@ON_SQLITE
def test_the_file_of_a_probe_is_touched_also_while_no_beat_succeeds(world: World, tmp_path: Path) -> None:
    file, away = tmp_path / "worker.heartbeat", threading.Event()

    def clock() -> float:
        if away.is_set():
            raise OSError("the database is away")
        return 0.0

    pulse = heartbeat.HeartbeatSender(world.database, "here", "worker", 0.3, file=file, clock=clock)
    pulse.start()
    assert file.stat().st_size == 0
    away.set()
    for _ in range(2):
        os.utime(file, (0, 0))
        assert soon(lambda: file.stat().st_mtime > 0)
    pulse.stop()
    os.utime(file, (0, 0))
    time.sleep(0.3)
    assert file.stat().st_mtime == 0, "a process that ended is not shown alive"


@ON_SQLITE
def test_a_file_that_cannot_be_touched_stops_no_beat(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pulse = heartbeat.HeartbeatSender(world.database, "here", "worker", 30, file=tmp_path / "none" / "file")
    pulse.start()
    pulse.stop()
    assert f"{tmp_path}/none/file was not touched: No such file or directory" in caplog.text


def soon(holds: Callable[[], bool]) -> bool:
    """Return whether it holds within half a minute."""
    ends = time.monotonic() + 30
    while not holds() and time.monotonic() < ends:
        time.sleep(0.05)
    return holds()


def test_where_the_system_does_not_tell_the_memory_none_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "STATUS", tmp_path / "none")
    assert heartbeat.resident_mebibytes() is None
