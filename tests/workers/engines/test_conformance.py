"""What every runner keeps: the bytes of a worker's own training, one program of a part, nothing left behind.

tests/workers/rows/test_ranks.py and test_points.py ask the same of a worker that trains by itself.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from expunge_service.access.api_keys import Scope
from expunge_service.infra.tables import TrainedPart
from expunge_service.requests import Reason, explain
from expunge_workers.app import Worker
from expunge_workers.runtime import drain, model, worlds
from expunge_workers.runtime.engine import Engine, PartJob
from expunge_workers.runtime.part_files import ASKED, CHECKPOINT, PART, VERDICT, PartFiles
from expunge_workers.runtime.part_program import descendants
from expunge_workers.storage.environment import Environment
from tests.workers.engines.conftest import programs
from tests.workers.rows.data import EVERYBODY, forget, lay_out, published, trained_on
from tests.workers.rows.test_points import began_at, recipe
from tests.workers.rows.test_ranks import ALONE, DDP
from tests.workers.worlds import World, begin, open_world

PATIENCE_SECONDS = 60.0


def eventually(what: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


def parts(made: Engine) -> list[str]:
    return sorted(path.name.partition(".")[2] for path in Path(made.place).glob("*"))


def programs_after_a_checkpoint(made: Engine) -> set[int]:
    """The programs that run once a checkpoint was written from now on."""

    def written() -> list[int]:
        return [path.stat().st_mtime_ns for path in Path(made.place).glob(f"*.{CHECKPOINT}")]

    before = written()
    eventually(lambda: written() not in ([], before) and programs(made.place))
    return programs(made.place)


def without(folder: Path, gone: int, text: str) -> None:
    lay_out(folder, (person for person in EVERYBODY if person != gone), text)


def never(world: World, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What a registration on the data as they are now publishes, by worlds of this machine."""
    with monkeypatch.context() as here:
        here.setattr(model, "engine_of", lambda *_: None)
        return published(world, world.live("rows", "retrain", name="never"))


def test_two_processes_train_and_forget_in_the_bytes_of_a_worker(
    world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(folder, recipe=DDP)
    world = world.configured(recipes=folder, trial_seconds=60.0)
    held = world.live("rows", "retrain", name="held")
    claim = world.head(held).claim
    assert (claim["world"]["walls"], claim["world"]["repeats"]) == ("reported", True), "a worker made it again"
    assert "machines of an engine reported the walls" in " ".join(claim["declared"]) and claim["operators_word"]
    gone = trained_on(world)[0]
    forget(world, held, gone)
    assert world.count(TrainedPart) == 1, "the keys of the files that went out left with the version before"
    without(folder, gone, DDP)
    assert published(world, held) == never(world, monkeypatch)
    assert not programs(engine.place) and parts(engine) == []


@pytest.mark.drill
def test_shards_train_at_once_and_a_deletion_trains_the_one_it_concerns(
    world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(folder, recipe=recipe(sleep=0.05))
    world, options = world.configured(recipes=folder), {"shards": 3}
    held = world.register("rows", "shards", name="held", options=options)
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    eventually(lambda: len(programs(engine.place)) == 3)
    working.join()
    gone = trained_on(world)[0]
    request = world.delete(f"p{gone}", models=("held",))
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    eventually(lambda: programs(engine.place))
    assert len(programs(engine.place)) == 1
    working.join()
    assert world.task(request).status == "completed" and not programs(engine.place) and parts(engine) == []
    without(folder, gone, recipe())
    with monkeypatch.context() as here:
        here.setattr(model, "engine_of", lambda *_: None)
        assert published(world, world.live("rows", "shards", name="never", options=options)) == published(world, held)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise ValueError('a secret')", "The recipe raised ValueError in process 1 of 2 at line "),
        pytest.param("os._exit(3)", "3 attempts ended without a result", marks=pytest.mark.drill),
    ],
)
def test_what_fails_is_told_as_a_worker_tells_it(
    world: World, folder: Path, engine: Engine, fault: str, said: str
) -> None:
    lay_out(folder, recipe=ALONE.replace("{fault}", fault))
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    for _ in range(4):
        world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert said in reason and "secret" not in reason, reason
    assert not programs(engine.place) and parts(engine) == []


def test_who_submits_twice_adopts(world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker dies; the next claim finds the same program at work, or what it made."""
    lay_out(folder, recipe=recipe(sleep=0.06))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    child = begin(lambda: open_world(world.settings).work(held))
    eventually(lambda: programs(engine.place))
    before = programs(engine.place)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    world.expire_lease(held)
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    time.sleep(2 * worlds.LOOK_SECONDS)
    assert programs(engine.place) == before
    working.join()
    assert world.model(held).status == "live", world.model(held).reason
    assert published(world, held) == never(world, monkeypatch)
    assert not programs(engine.place) and parts(engine) == []


@pytest.mark.drill
@pytest.mark.parametrize(("number", "every"), [(signal.SIGKILL, 0.5), (signal.SIGTERM, 300.0)])
def test_a_program_that_ends_early_goes_on_from_its_checkpoint(
    world: World, folder: Path, engine: Engine, number: int, every: float
) -> None:
    """Killed, from the last one; asked to stop, as before a machine is taken away, from one that it makes then."""
    lay_out(folder, recipe=recipe(sleep=0.1, every=every, begin="begin"))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    for _ in range(2):
        if number == signal.SIGKILL:
            (program,) = programs_after_a_checkpoint(engine)
        else:
            eventually(lambda: any(len(descendants(program)) >= 5 for program in programs(engine.place)))
            time.sleep(2)  # it is in its loop by then
            (program,) = programs(engine.place)
        os.kill(program, number)
        working.join()
        assert CHECKPOINT in parts(engine) and VERDICT not in parts(engine)
        assert world.generation(held).attempts == 1, "an attempt that moved on is not counted"
        world.expire_lease(held)
        working = threading.Thread(target=lambda: open_world(world.settings).work(held))
        working.start()
    working.join()
    assert world.model(held).status == "live", world.model(held).reason
    assert 0 < began_at(world, held) < 100
    assert not programs(engine.place) and parts(engine) == []


@pytest.mark.drill
def test_a_recipe_that_ends_elsewhere_once_resumed_begins_anew(world: World, folder: Path, engine: Engine) -> None:
    """It publishes where it went on from, so its trial, which is interrupted, gives other bytes."""
    lay_out(folder, recipe=recipe(sleep=0.05, every=0.5, begin="begin"))
    world = world.configured(recipes=folder, trial_seconds=60.0)
    held = world.live("rows", "retrain", name="held")
    assert world.head(held).claim["world"]["repeats"] is False
    world.delete(f"p{trained_on(world)[0]}", models=("held",))
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    (program,) = programs_after_a_checkpoint(engine)
    os.kill(program, signal.SIGKILL)
    working.join()
    while world.head(held).number == 1:
        world.expire_lease(held)
        open_world(world.settings).work(held)
    assert began_at(world, held) == 0


@pytest.mark.parametrize("given_back", ["at the next look", "while it is submitted"])
def test_a_planned_stop_leaves_the_part_to_the_next_claim(
    world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, given_back: str
) -> None:
    lay_out(folder, recipe=recipe(sleep=0.06))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    with monkeypatch.context() as stopping:
        stopping.setattr(drain, "_wanted", drain._Wanted())
        stopping.setattr(worlds, "_templates", [])
        worker = Worker(world.process, world.pulse())
        with drain.answered_by(worker.give_back):
            submit = engine.runner.submit

            def submit_and_be_asked(job: PartJob) -> None:
                submit(job)
                drain.ask()
                eventually(lambda: "attempt.given_back" in world.kinds())

            if given_back == "while it is submitted":
                stopping.setattr(engine.runner, "submit", submit_and_be_asked)
            working = threading.Thread(target=lambda: worker.work(held))
            working.start()
            eventually(lambda: programs(engine.place))
            if given_back == "at the next look":
                drain.ask()
            working.join()
    assert (world.model(held).status, world.generation(held).attempts, len(programs(engine.place))) == (
        "preparing",
        0,
        1,
    )
    before = programs(engine.place)
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    time.sleep(2 * worlds.LOOK_SECONDS)
    assert programs(engine.place) == before
    working.join()
    assert published(world, held) == never(world, monkeypatch)


@pytest.mark.parametrize("adopted", [False, pytest.param(True, marks=pytest.mark.drill)])
def test_a_lost_claim_leaves_no_process_and_no_file(
    world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, adopted: bool
) -> None:
    """Of an update, whose progress nobody follows. But what the next claim has adopted by then is left to it."""
    monkeypatch.setattr("expunge_workers.runtime.engine.ASK_SECONDS", 1.0)
    lay_out(folder, recipe=recipe().replace("time.sleep(SLEEP)", "time.sleep(0 if len(frame) == 120 else 1)"))
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", name="held")
    world.delete(f"p{trained_on(world)[0]}", models=("held",))
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    eventually(lambda: programs(engine.place))
    world.expire_lease(held)
    assert world.claim(held) is not None
    (asked,) = Path(engine.place).glob(f"*.{ASKED}")
    if adopted:
        os.utime(asked, (time.time() + 1, time.time() + 1))
    working.join(PATIENCE_SECONDS)
    assert not working.is_alive()
    if adopted:
        assert programs(engine.place) and PART in parts(engine)
        engine.runner.cancel(asked.name.partition(".")[0])
    else:
        assert parts(engine) == []
    assert not programs(engine.place)


def test_cancelling_ends_every_process(world: World, folder: Path, engine: Engine) -> None:
    """The program, its template, the world, its part, and the second process of that."""
    lay_out(folder, recipe=DDP.replace("    x, y = data(rows)", "    x, y = data(rows)\n    time.sleep(60)"))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    child = begin(lambda: open_world(world.settings).work(held))
    eventually(lambda: any(len(descendants(program)) >= 5 for program in programs(engine.place)))
    (program,) = programs(engine.place)
    below = descendants(program)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (name,) = {path.name.partition(".")[0] for path in Path(engine.place).glob("*")}
    engine.runner.cancel(name)
    alive = [process for process in (program, *below) if Path(f"/proc/{process}").exists()]
    assert [process for process in alive if Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"] == []
    assert engine.runner.look(name) is not None
    engine.runner.cancel(name)


def test_what_another_wrote_for_a_verdict_is_not_believed(
    world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(folder, recipe=recipe())
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    verdict, forged = PartFiles.verdict, list[Path]()

    def forge(files: PartFiles) -> object:
        path = Path(engine.place) / f"{files.name}.{VERDICT}"
        if path.exists() and not forged:
            forged.append(path)
            data = bytearray(path.read_bytes())
            data[-20] ^= 1
            path.write_bytes(data)
        return verdict(files)

    monkeypatch.setattr(PartFiles, "verdict", forge)
    world.work(held)
    assert forged and world.model(held).status == "preparing" and parts(engine) == []
    world.expire_lease(held)
    world.work(held)
    assert published(world, held) == never(world, monkeypatch)


def test_a_machine_of_another_kind_is_refused_and_not_the_recipe(
    world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release of a library would give other bits than the claim says."""
    lay_out(folder, recipe=recipe())
    world = world.configured(recipes=folder)
    with monkeypatch.context() as local:
        local.setattr(model, "engine_of", lambda *_: None)
        held = world.live("rows", "retrain", name="held", fallback="retrain")
    here = Environment.of

    def another(*arguments: object, **named: object) -> Environment:
        worker = here(*arguments, **named)  # type: ignore[arg-type]
        return Environment(worker.machine, {**worker.distributions, "torch": "1.0.0"})

    monkeypatch.setattr("expunge_workers.runtime.engine.Environment.of", another)
    request = world.delete(f"p{trained_on(world)[0]}", models=("held",))
    world.work(held)
    task = world.task(request)
    assert (task.status, task.reason) == ("blocked", Reason.ENVIRONMENT_CHANGED), "a retraining would meet the same"
    said = explain(task.reason, request, facts=task.facts, scopes=tuple(Scope))["title"]
    assert said == "A machine of the cluster differs from its worker, which has torch 1.0.0: run its image there."
    assert parts(engine) == [] and not programs(engine.place)
