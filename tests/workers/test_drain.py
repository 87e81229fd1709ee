"""Workers that an operator drains: they give back what they hold, take no work, and go on when they are told to.

Real processes: ``tests/stories/test_planned_stops.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from expunge_client.cli.main import app
from expunge_service.cli.checks import examine
from expunge_service.infra.db import now
from expunge_service.infra.tables import Heartbeat, Model
from expunge_service.queue import others_take, worker_states
from expunge_workers.app import Worker
from expunge_workers.runtime import drain, worlds
from expunge_workers.runtime.heartbeat import HeartbeatSender
from expunge_workers.update import run
from tests.faults.invariants import broken
from tests.workers.worlds import World

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
SOON_SECONDS = 10.0


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_wanted", drain._Wanted())
    monkeypatch.setattr(worlds, "_templates", [])


@pytest.fixture
def command(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``expunge drain`` as an operator runs it; returns what it prints."""
    monkeypatch.setenv("EXPUNGE_HOME", str(world.settings.home))
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", world.database.engine.url.render_as_string(hide_password=False))

    def run_command(*arguments: str, exits: int = 0) -> str:
        done = CliRunner().invoke(app, ["drain", *arguments])
        assert done.exit_code == exits, (done.output, done.exception)
        return done.output + str(done.exception or "")

    return run_command


@contextmanager
def beating(world: World) -> Iterator[HeartbeatSender]:
    """The heartbeat of a worker, each tenth of a second."""
    pulse = world.limited(lease_seconds=30.0).pulse()
    pulse._every = 0.1
    pulse.start()
    try:
        yield pulse
    finally:
        pulse.stop()


def soon(holds: Callable[[], object]) -> bool:
    deadline = time.monotonic() + SOON_SECONDS
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(holds())


def rests(world: World) -> list[bool]:
    with world.database.read() as session:
        return [state.rests for state in worker_states(session)]


@pytest.mark.both_engines
def test_a_drained_worker_gives_back_what_it_holds_waits_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    begun, refine = threading.Event(), run.refine

    def long(*values: object) -> object:
        begun.set()
        while not drain.asked():
            time.sleep(0.01)
        drain.look()
        return refine(*values)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "refine", long)
    with beating(world) as pulse:
        worker = Worker(world.process, pulse)
        with drain.answered_by(worker.give_back):
            at_work = threading.Thread(target=worker.work, args=[model_id])
            at_work.start()
            assert begun.wait(30)
            told = command(world.process.owner, "--wait")
            assert "drained" in told.split(), told
            assert (world.task(request).status, world.task(request).attempts) == ("queued", 0)
            assert world.lease(model_id).token == 0
            assert world.kinds().count("attempt.given_back") == 1 and "attempt.failed" not in world.kinds()
            at_work.join(1.0)
            assert at_work.is_alive(), "it keeps the message, so that Celery fetches no other"
            monkeypatch.setattr(run, "refine", refine)
            assert command("--undo", "--wait").count("taking work") == 1
            at_work.join(SOON_SECONDS)
            assert not at_work.is_alive()
            worker.work(model_id)
    assert (world.request(request).status, world.task(request).samples) == ("completed", 3)
    assert [kind for kind in world.kinds() if kind.startswith("worker.")] == ["worker.drained", "worker.resumed"]
    assert broken(world.database) == []


@ON_SQLITE
def test_a_worker_that_rests_can_still_be_stopped(world: World, command: Callable[..., str]) -> None:
    model_id = world.register(guarantee="proved")
    with beating(world) as pulse:
        worker = Worker(world.process, pulse)
        with drain.answered_by(worker.give_back):
            command("--wait")
            at_work = threading.Thread(target=worker.work, args=[model_id])
            at_work.start()
            at_work.join(0.5)
            assert at_work.is_alive()
            drain.ask()
            at_work.join(SOON_SECONDS)
            assert not at_work.is_alive()
    assert world.generation(model_id).attempts == 0


@ON_SQLITE
def test_a_drained_worker_whose_row_was_forgotten_still_rests(world: World, command: Callable[..., str]) -> None:
    """It was silent for an hour, as when a machine is suspended: nobody let it go on."""
    with beating(world):
        command("--wait")
        with world.database.write() as session:
            session.delete(session.get_one(Heartbeat, world.process.owner))
        assert soon(lambda: rests(world) == [True])
        time.sleep(0.3)
        assert drain.rests()


def test_a_rest_that_ends_before_it_is_heard_of_gives_nothing_back() -> None:
    given_back: list[bool] = []
    drain.follow(rest=True)
    drain.follow(rest=False)
    with drain.answered_by(lambda: given_back.append(True)):
        pass
    assert given_back == [] and drain.sit_out(0.0)


@ON_SQLITE
def test_a_name_is_a_process_or_a_machine_and_a_wrong_one_changes_nothing(
    world: World, command: Callable[..., str]
) -> None:
    with world.database.write() as session:
        at = now(session)
        for process in ("gpu-1:7:aa", "gpu-1:8:bb", "gpu-10:7:cc"):
            row = {"kind": "worker", "software": "s", "started_at": at, "beat_at": at}
            session.add(Heartbeat(process=process, **row))
        session.add(Heartbeat(process="dead:1:dd", kind="worker", software="s", started_at=0, beat_at=0))
        session.add(Heartbeat(process="gpu-1:9:ee", kind="scheduler", software="s", started_at=at, beat_at=at))
    assert "No living worker or updater is named dead" in command("gpu-1", "dead", exits=1)
    assert {row.process for row in world.rows_of(Heartbeat) if row.drained} == set()
    command("gpu-1")
    assert {row.process for row in world.rows_of(Heartbeat) if row.drained} == {"gpu-1:7:aa", "gpu-1:8:bb"}
    told = next(finding for finding in examine(world.settings) if finding.name == "drained")
    assert told.well and told.what == "Drained: gpu-1:7:aa, gpu-1:8:bb, of 3 living workers."
    command()
    assert not next(finding for finding in examine(world.settings) if finding.name == "drained").well
    command("gpu-10", "--undo")
    command("gpu-1:7:aa", "--undo")
    assert {row.process for row in world.rows_of(Heartbeat) if row.drained} == {"gpu-1:8:bb"}
    assert world.kinds().count("worker.drained") == 3 and world.kinds().count("worker.resumed") == 2


@ON_SQLITE
def test_without_a_worker_there_is_nothing_to_drain(world: World, command: Callable[..., str]) -> None:
    assert "No worker is alive" in command(exits=1)


@ON_SQLITE
def test_a_wait_says_which_worker_is_late(
    world: World, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a release that knows no drain, for example."""
    monkeypatch.setattr("expunge_service.cli.commands.drain.WAIT_SECONDS", 0.2)
    with world.database.write() as session:
        at = now(session)
        session.add(Heartbeat(process="old:1:aa", kind="worker", software="expunge 0.2.0", started_at=at, beat_at=at))
    told = " ".join(command("--wait", exits=1).split())
    assert "old:1:aa is asked to take no work. It runs expunge 0.2.0." in told


@ON_SQLITE
def test_work_is_not_divided_for_a_worker_that_rests(world: World) -> None:
    model_id = world.live()
    with world.database.write() as session:
        at = now(session)
        session.add(Heartbeat(process="other:1:aa", kind="worker", software="s", started_at=at, beat_at=at))
        session.flush()
        model = session.get_one(Model, model_id)
        assert others_take(session, model, "me")
        session.get_one(Heartbeat, "other:1:aa").drained = True
        session.flush()
        assert not others_take(session, model, "me")
