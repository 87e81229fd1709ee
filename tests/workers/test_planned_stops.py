"""A worker that is asked to stop, in each phase of its work: the claim goes back uncharged, and another worker goes on.

Real processes: ``tests/stories/test_planned_stops.py``.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import CalibrationOrder, Generation, Lease, Model
from expunge_service.models import plan_new_data
from expunge_service.models.retrain_plan import retrain_lease
from expunge_service.queue import promotion, publication
from expunge_workers.app import Worker
from expunge_workers.runtime import drain, worlds
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.runtime.worlds import Lost
from expunge_workers.training import calibrate, prepare, start
from expunge_workers.update import run
from tests.faults.invariants import broken
from tests.workers.rows.data import APART, lay_out
from tests.workers.rows.test_calibrate import ASKED
from tests.workers.worlds import World, keep_lease, open_world

GIVEN_BACK = "attempt.given_back"
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let this process be one that was not asked to stop; again at each call, for the worker that goes on."""

    def reset() -> None:
        monkeypatch.setattr(drain, "_wanted", drain._Wanted())
        monkeypatch.setattr(worlds, "_templates", [])  # one that was killed may not have ended yet

    reset()
    return reset


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Fix the key that shards and orders are drawn with."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


def asks_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, late: bool = False) -> None:
    """Let the process be asked to stop when this function is called the first time, or when it returns (``late``).

    The thread that gives back has a moment to try.
    """
    function, asked = getattr(owner, name), []

    def ask() -> None:
        if not asked:
            asked.append(True)
            drain.ask()
            time.sleep(0.2)

    def called(*values: Any, **named: Any) -> Any:
        if not late:
            ask()
        result = function(*values, **named)
        ask()
        return result

    monkeypatch.setattr(owner, name, called)


def stopped(world: World, model_id: str) -> None:
    """Let a worker get a message, and be asked to stop meanwhile."""
    worker = Worker(world.process, world.pulse())
    with drain.answered_by(worker.give_back):
        worker.work(model_id)
    assert drain.asked(), "nothing asked it to stop"


IN_A_PREPARATION = {
    "load": (start, "admit"),
    "train": (start, "_learned"),
    "method": (prepare, "_prepared"),
    "certify": (prepare, "certify"),
    "store": (prepare, "write_draft"),
    "publish": (prepare, "publish_generation"),
}
IN_AN_UPDATE = {
    "load": (run, "load"),
    "forget": (run, "refine"),
    "certify": (run, "certify"),
    "store": (run, "write_draft"),
    "publish": (run, "publish"),
}
QUICK = ("train", "forget", "publish")


def quick(phases: dict[str, Any]) -> list[Any]:
    """Leave to the drills what stands beside the longest phase and the last."""
    return [pytest.param(phase, marks=() if phase in QUICK else pytest.mark.drill) for phase in phases]


@ON_SQLITE
@pytest.mark.parametrize("phase", quick(IN_A_PREPARATION))
def test_a_stop_in_a_preparation_costs_no_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None], phase: str
) -> None:
    model_id = world.register(guarantee="proved")
    asks_at(monkeypatch, *IN_A_PREPARATION[phase])
    stopped(world, model_id)
    assert (world.model(model_id).status, world.generation(model_id).attempts) == ("preparing", 0)
    assert world.lease(model_id).token == 0
    assert world.kinds().count(GIVEN_BACK) == 1 and "attempt.failed" not in world.kinds()
    new_process()
    open_world(world.settings).work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert broken(world.database) == []


@ON_SQLITE
@pytest.mark.parametrize("phase", quick(IN_AN_UPDATE))
def test_a_stop_in_an_update_costs_no_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None], phase: str
) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    asks_at(monkeypatch, *IN_AN_UPDATE[phase])
    stopped(world, model_id)
    assert (world.request(request).status, world.task(request).status) == ("queued", "queued")
    assert (world.task(request).attempts, world.lease(model_id).token) == (0, 0)
    assert world.kinds().count(GIVEN_BACK) == 1 and "attempt.failed" not in world.kinds()
    new_process()
    open_world(world.settings).work(model_id)
    assert (world.request(request).status, world.task(request).samples) == ("completed", 3)
    assert broken(world.database) == []


@pytest.mark.both_engines
@pytest.mark.parametrize("first", [False, True])
def test_a_stop_inside_the_transaction_that_publishes_gives_nothing_back(
    world: World, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The thread waits for the transaction, and then finds that the claim has ended."""
    model_id = world.register(guarantee="proved") if first else world.live(guarantee="proved")
    request = None if first else world.delete("p3")
    asks_at(monkeypatch, promotion if first else publication, "make_version", late=True)
    stopped(world, model_id)
    assert (world.model(model_id).status, world.head(model_id).number) == ("live", 1 if first else 2)
    assert request is None or world.request(request).status == "completed"
    assert GIVEN_BACK not in world.kinds() and world.lease(model_id).token == 0
    assert broken(world.database) == []


@pytest.mark.both_engines
def test_a_worker_that_never_looks_has_its_claim_given_back_and_publishes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    """It computes for long without a look; another worker publishes meanwhile."""
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    begun, go_on, refine = threading.Event(), threading.Event(), run.refine

    def long(*values: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return refine(*values)

    with monkeypatch.context() as patch:
        patch.setattr(run, "refine", long)
        worker = Worker(world.process, world.pulse())
        with drain.answered_by(worker.give_back):
            at_work = threading.Thread(target=worker.work, args=[model_id])
            at_work.start()
            assert begun.wait(30)
            drain.ask()
            deadline = time.monotonic() + 2
            while world.lease(model_id).token and time.monotonic() < deadline:
                time.sleep(0.01)
    assert world.lease(model_id).token == 0, "within two seconds"
    new_process()
    open_world(world.settings).work(model_id)
    go_on.set()
    at_work.join(30)
    assert (world.request(request).status, world.head(model_id).number) == ("completed", 2)
    assert world.kinds().count(GIVEN_BACK) == 1 and broken(world.database) == []


@ON_SQLITE
def test_a_stop_in_a_retrain_gives_the_candidate_back(
    world: World, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    model_id = world.live(guarantee="proved")
    with world.database.write() as session:
        plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
    asks_at(monkeypatch, start, "_learned")
    stopped(world, model_id)
    with world.database.read() as session:
        assert session.get_one(Lease, retrain_lease(model_id)).token == 0
    assert world.kinds().count(GIVEN_BACK) == 1
    new_process()
    world.work(model_id)
    assert world.head(model_id).number == 2


@pytest.mark.both_engines
def test_a_stop_in_a_unit_gives_it_back_with_the_claim_and_keeps_those_that_are_done(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model_id = world.register("convex", "newton", **ASKED)
    asks_at(monkeypatch, calibrate.CalibrationUnits, "compute", late=True)
    stopped(world, model_id)
    rows = world.rows_of(CalibrationOrder)
    assert [row.done_at is not None for row in rows].count(True) == 1
    assert [row.owner for row in rows if row.done_at is None] == [None] * (len(rows) - 1)
    assert world.kinds().count(GIVEN_BACK) == 1 and world.generation(model_id).attempts == 0
    new_process()
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "begin", None)  # what was trained is not trained again
        open_world(world.settings).work(model_id)
    assert "resumed: the orders that are done are kept" in caplog.messages
    assert world.model(model_id).status == "live", world.model(model_id).reason


@ON_SQLITE
def test_a_helper_that_is_stopped_gives_its_unit_back(
    world: World, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    model_id = world.register("convex", "newton", **ASKED)
    asks_at(monkeypatch, calibrate.CalibrationUnits, "compute", late=True)
    stopped(world, model_id)
    new_process()
    assert world.claim(model_id, seconds=600) is not None
    keep_lease(world, model_id)
    helper = open_world(world.settings)
    asks_at(monkeypatch, calibrate.CalibrationUnits, "_errors_in_worlds")
    stopped(helper, model_id)
    assert [row.owner for row in world.rows_of(CalibrationOrder) if row.done_at is None] == [None] * 3
    assert world.kinds().count(GIVEN_BACK) == 1, "the claim is another's"


@ON_SQLITE
def test_a_part_in_a_world_is_killed_and_not_waited_for(
    world: World, settings: Settings, tmp_path: Path, new_process: Callable[[], None]
) -> None:
    lay_out(tmp_path / "recipes", recipe=APART.replace("    frame =", "    import time; time.sleep(20)\n    frame ="))
    here = open_world(settings.model_copy(update={"recipes": tmp_path / "recipes"}))
    model_id = here.register("rows", "retrain")
    timer = threading.Timer(0.0, _ask_in_the_training)
    timer.start()
    stopped(here, model_id)
    timer.join()
    assert time.monotonic() - ASKED_AT[-1] < 2.0
    assert worlds._templates[0].process.wait(5) == -signal.SIGKILL
    assert (here.kinds().count(GIVEN_BACK), here.generation(model_id).attempts) == (1, 0)
    lay_out(tmp_path / "recipes")
    new_process()
    here.work(model_id)
    assert here.model(model_id).status == "live", here.model(model_id).reason
    here.storage.close()


ASKED_AT: list[float] = []


def _ask_in_the_training() -> None:
    """Wait until a reader and a world were forked, and ask this process to stop."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if worlds._templates and len(_children(worlds._templates[0].process.pid)) == 2:
            time.sleep(1.0)
            ASKED_AT.append(time.monotonic())
            drain.ask()
            return
        time.sleep(0.02)


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_wait_for_the_time_bucket_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge_workers.runtime.heartbeat.sleep", drain.sleep)
    monkeypatch.setattr("expunge_workers.runtime.heartbeat.time_bucket", lambda _: 60.0)

    class Pulse:
        def phase(self, name: str) -> None: ...

    watch: Any = Stopwatch(Pulse())  # type: ignore[arg-type]
    begun = time.monotonic()
    with drain.answered_by(lambda: None):
        threading.Timer(0.2, drain.ask).start()
        with pytest.raises(drain.Drained), watch.unlearning():
            pass
    assert time.monotonic() - begun < 5


@ON_SQLITE
def test_a_worker_that_is_to_stop_takes_no_claim_and_passes_the_message_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.register(guarantee="proved")
    sent: list[str] = []
    monkeypatch.setattr("expunge_workers.app.notify_many", lambda _, __, model, count: sent.append(model))
    drain.ask()
    world.worker().work(model_id)
    assert world.worker().update_what_waits() == 0
    assert (sent, world.generation(model_id).attempts) == ([model_id], 0)
    assert "preparation.claimed" not in world.kinds()


@ON_SQLITE
def test_a_failure_while_a_worker_stops_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")

    def fails(*_: Any) -> Any:
        drain.ask()
        raise Lost("the server of fresh processes ended")

    monkeypatch.setattr(run, "refine", fails)
    stopped(world, model_id)
    assert (world.task(request).attempts, world.task(request).reason) == (0, None)
    assert GIVEN_BACK in world.kinds() and "attempt.failed" not in world.kinds()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


@ON_SQLITE
def test_the_log_names_model_and_phase_of_a_stop(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model_id = world.register(guarantee="proved", name="heart")
    asks_at(monkeypatch, start, "_learned")
    caplog.set_level(logging.INFO)
    stopped(world, model_id)
    lines = {each.message: each for each in caplog.records if each.name == "expunge_workers.app"}
    begun = lines["training begun"]
    given_back = next(line for message, line in lines.items() if message.startswith("given back"))
    assert vars(begun)["model"] == "heart" and begun.levelno == logging.INFO
    assert (vars(given_back)["model"], vars(given_back)["phase"]) == ("heart", "train")
    assert given_back.levelno == logging.WARNING


@ON_SQLITE
def test_the_log_names_what_another_worker_lost(world: World, caplog: pytest.LogCaptureFixture) -> None:
    model_id = world.live(guarantee="proved", name="heart")
    world.delete("p3")
    assert world.claim(model_id) is not None
    world.change(Generation, world.generation(model_id).id, phase="unlearn at 900 MiB")
    world.expire_lease(model_id)
    caplog.set_level(logging.INFO)
    world.work(model_id)
    (line,) = (each for each in caplog.records if "taken over" in each.message)
    assert (vars(line)["model"], vars(line)["count"]) == ("heart", 1)
    assert vars(line)["phase"] == "unlearn at 900 MiB" and line.levelno == logging.WARNING
