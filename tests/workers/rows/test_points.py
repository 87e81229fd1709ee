"""A training that is stopped goes on from its last point, and ends in the bytes of one that was not."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load

import unlearning as ul
from expunge_service.infra.tables import TrainedPart
from expunge_workers.runtime import build
from expunge_workers.runtime.part_program import descendants
from expunge_workers.runtime.points import HEADER, OwnPoints, TakenPoints
from expunge_workers.runtime.walls import WITHOUT_NAMESPACES, Probe
from expunge_workers.runtime.worlds import readers
from expunge_workers.training.keyed_parts import KeyedParts
from tests.workers.rows.conftest import Stop
from tests.workers.rows.data import EVERYBODY, lay_out, published, trained_on
from tests.workers.test_crashes import die_at
from tests.workers.worlds import World, begin, open_world
from unlearning.accounting.world import Enclosure
from unlearning.types import RecipeError

HEAD = """
import random
import time
import numpy as np
import torch
import unlearning as ul
from safetensors.torch import save

STEPS, SLEEP = 100, {sleep}


def recipe(
    rows: ul.Rows = ul.table("people.csv", person="person"),
    run: ul.TrainingRun = ul.run(checkpoint_seconds={every}),
):
    frame = rows.pandas()
    x = torch.tensor(frame[["x", "y"]].to_numpy(), dtype=torch.float32)
    y = (x.sum(dim=1, keepdim=True) > 4).float()
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    begin = 0
    if last := run.resumed:
        model.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        begin = last["step"]
    for step in range(begin, STEPS):
        batch = torch.randperm(len(x))[:16]
        shifted = x[batch] + 0.01 * random.random() + 0.01 * float(np.random.rand())
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(shifted), y[batch]).backward()
        optimizer.step()
        time.sleep(SLEEP)
        run.checkpoint(lambda: {{"step": step + 1, "model": model.state_dict(), "optimizer": {optimizer}}})
    weights = {{name: value.contiguous() for name, value in model.state_dict().items()}}
    return ul.Published({{"model.safetensors": save(weights | {{"begin": torch.tensor([{begin}])}})}})
"""

FORGOTTEN = "torch.optim.AdamW(model.parameters(), lr=0.01).state_dict()"
"""what a recipe gives that forgets the moments of its optimizer"""


def recipe(
    sleep: float = 0.0, every: float = 300.0, begin: str = "0", optimizer: str = "optimizer.state_dict()"
) -> str:
    """The recipe, which draws by every generator. ``begin``: what it publishes of where it went on from."""
    return HEAD.format(sleep=sleep, every=every, begin=begin, optimizer=optimizer)


def began_at(world: World, model_id: str) -> int:
    """Return the step that the training of the current version began at, where the recipe publishes it."""
    return int(load(published(world, model_id))["begin"])


def test_three_stops_cost_a_registration_and_a_deletion_no_bit_and_no_attempt(
    world: World, folder: Path, stop: Stop
) -> None:
    lay_out(folder, recipe=recipe(sleep=0.05))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    for _ in range(3):
        stop(world, held)
        assert (world.model(held).status, world.generation(held).attempts, world.lease(held).token) == (
            "preparing",
            0,
            0,
        )
        assert world.count(TrainedPart) == 1, "the point alone"
    open_world(world.settings).work(held)
    assert world.model(held).status == "live", world.model(held).reason
    gone = trained_on(world)[0]
    request = world.delete(f"p{gone}", models=("held",))
    for _ in range(3):
        stop(world, held)
        assert (world.task(request).status, world.task(request).attempts) == ("queued", 0)
    open_world(world.settings).work(held)
    assert world.task(request).status == "completed"
    assert world.count(TrainedPart) == 1, "the points left with the version that they were not needed for any more"
    after = published(world, held)
    lay_out(folder, (person for person in EVERYBODY if person != gone), recipe(sleep=0.0))
    assert published(world, world.live("rows", "retrain", name="never")) == after


def test_it_goes_on_where_it_was_and_a_recipe_that_then_ends_elsewhere_never_does_again(
    world: World, folder: Path, stop: Stop
) -> None:
    """The recipe publishes where it went on from, so its trial, which is interrupted, gives other bytes."""
    lay_out(folder, recipe=recipe(sleep=0.05, begin="begin"))
    world = world.configured(recipes=folder, trial_seconds=60.0)
    held = world.register("rows", "retrain", name="held")
    stop(world, held)
    open_world(world.settings).work(held)
    assert 0 < began_at(world, held) < 100
    assert world.head(held).claim["world"]["repeats"] is False
    world.delete(f"p{trained_on(world)[0]}", models=("held",))
    stop(world, held)
    open_world(world.settings).work(held)
    assert world.head(held).number == 2 and began_at(world, held) == 0


@pytest.mark.parametrize(("optimizer", "repeats"), [("optimizer.state_dict()", True), (FORGOTTEN, False)])
def test_the_trial_of_a_registration_is_interrupted(world: World, folder: Path, optimizer: str, repeats: bool) -> None:
    lay_out(folder, recipe=recipe(optimizer=optimizer))
    world = world.configured(recipes=folder, trial_seconds=60.0)
    assert world.head(world.live("rows", "retrain")).claim["world"]["repeats"] is repeats


def test_a_part_that_an_earlier_attempt_made_is_interrupted_in_its_trial_too(world: World, folder: Path) -> None:
    """Its worker died when the part was kept, so nobody here saw how often it looked."""
    lay_out(folder, recipe=recipe(optimizer=FORGOTTEN))
    world = world.configured(recipes=folder, trial_seconds=60.0)
    held = world.register("rows", "retrain", name="held")
    die_at(world, "part-kept", lambda dying: dying.work(held))
    (part,) = {row.key for row in world.rows_of(TrainedPart)}
    world.expire_lease(held)
    world.work(held)
    assert [row.key for row in world.rows_of(TrainedPart)] == [part], "it was found"
    assert world.head(held).claim["world"]["repeats"] is False


def test_a_worker_that_helps_goes_on_from_no_point_either(world: World, folder: Path) -> None:
    lay_out(folder, recipe=recipe(optimizer=FORGOTTEN))
    world = world.configured(recipes=folder)
    held = world.register("rows", "shards", name="held", options={"shards": 2})
    die_at(world, "prepare-after-work-units", lambda dying: dying.work(held))
    for repeats, may_resume in ((None, True), (True, True), (False, False)):
        generation = world.generation(held)
        generation.manifest = (generation.manifest or {}) | {"repeats": repeats}
        with readers():
            opened = KeyedParts.opened(world.process, generation, "rows")
            assert opened is not None and opened.built.may_resume is may_resume


def test_a_worker_that_is_killed_after_each_point_is_never_given_up(world: World, folder: Path) -> None:
    lay_out(folder, recipe=recipe(sleep=0.05, every=0.5))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    points = set[str]()
    for _ in range(4):
        child = begin(lambda: open_world(world.settings).work(held))
        while points >= (kept := {part.result for part in world.rows_of(TrainedPart)}):
            time.sleep(0.05)
        below = descendants(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        try:
            while any(Path(f"/proc/{process}").exists() for process in below):  # the part waits for its worker
                time.sleep(0.05)
        finally:
            for process in below:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        points |= kept
        assert world.generation(held).attempts == 1
        world.expire_lease(held)
    open_world(world.settings).work(held)
    assert world.model(held).status == "live", world.model(held).reason
    lay_out(folder, recipe=recipe())
    assert published(world, world.live("rows", "retrain", name="never")) == published(world, held)


def test_whoever_leaves_while_it_waits_is_in_no_point_that_it_goes_on_from(
    world: World, folder: Path, stop: Stop
) -> None:
    lay_out(folder, recipe=recipe(sleep=0.05))
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", name="held")
    first, second = trained_on(world)[:2]
    world.delete(f"p{first}", models=("held",))
    stop(world, held)
    left = {part.result for part in world.rows_of(TrainedPart)}
    assert len(left) == 2, "the current version's part, and the point"
    world.delete(f"p{second}", models=("held",))
    open_world(world.settings).work(held)
    (part,) = world.rows_of(TrainedPart)
    assert part.result not in left and not any(world.storage.private.holds(name) for name in left)
    after = published(world, held)
    lay_out(folder, (person for person in EVERYBODY if person not in (first, second)), recipe())
    assert published(world, world.live("rows", "retrain", name="never")) == after


def test_a_part_that_went_on_is_as_confined_as_its_weakest_stretch(
    world: World, folder: Path, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(folder, recipe=recipe(sleep=0.05))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(build, "template", lambda: SimpleNamespace(probe=Probe(WITHOUT_NAMESPACES)))
        stop(world, held)
    open_world(world.settings).work(held)
    assert world.head(held).claim["world"]["walls"] == Enclosure.LANDLOCK.value


def test_the_file_of_a_point_cannot_be_cut_short_and_gives_its_memory_back() -> None:
    """A mapped file that is cut short kills whoever reads on, and the recipe's code may hold it too."""
    points: list[list[bytes]] = []
    taken = TakenPoints(1, lambda data: points.append([*data]))
    (handle,) = taken.handles
    with pytest.raises(PermissionError):
        os.ftruncate(handle, 0)
    own = OwnPoints(memoryview(mmap.mmap(handle, 0)), None, seconds=1e-9)
    offering = threading.Thread(target=own.offer, args=(lambda: torch.ones(1 << 20),))
    offering.start()
    while not taken.look():
        assert not points
    offering.join(10)
    assert not offering.is_alive() and len(points) == 1 and taken.calls == 1
    assert os.fstat(handle).st_blocks * 512 < 1 << 20, "less than the point's own four million bytes"
    (data,) = points[0]
    assert torch.equal(OwnPoints(memoryview(bytearray(HEADER)), memoryview(data), 1.0).last(), torch.ones(1 << 20))
    taken.close()


def test_by_hand_nothing_is_kept() -> None:
    def never() -> None:
        raise AssertionError("nobody keeps what this makes")

    run = ul.TrainingRun()
    run.checkpoint(never)
    assert run.resumed is None


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "300"])
def test_seconds_between_points_are_above_0(seconds: Any) -> None:
    with pytest.raises(RecipeError, match="out of range"):
        ul.run(checkpoint_seconds=seconds)


def test_a_point_is_tensors_and_plain_values_and_nothing_that_could_run_code() -> None:
    own = OwnPoints(memoryview(bytearray(HEADER)), None, seconds=1e-9)
    for value in (object(), {"a": {1, 2}}, [b"bytes"]):
        with pytest.raises(RecipeError, match="neither a tensor nor a plain value"):
            own.offer(lambda value=value: value)
