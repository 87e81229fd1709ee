"""The service on a device: updates that move between devices, a device that breaks, sums whose order decides."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from expunge.service.infra.settings import Settings, ensure_secrets
from expunge.service.infra.tables import Lease, Model
from expunge.service.models.retrain_plan import retrain_lease
from expunge.service.queue import HOLD_AFTER
from expunge.service.requests import Reason
from expunge.workers.app import DEVICE_BROKEN
from expunge.workers.training import trial
from tests.harness.stack import running
from tests.workers.worlds import RECIPES, World, open_world

RECIPE = """
import torch
import unlearning as ul

X = torch.randn(480, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
IDS, PEOPLE = [f"s{k}" for k in range(480)], [f"p{k // 20}" for k in range(480)]
"""
OUT_OF_BOUNDS = """
def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets + 7, reduction="none")

def recipe():
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2), samples=ul.Samples(ids=IDS, subjects=PEOPLE, inputs=X, targets=Y),
        holdout=(X[:9], Y[:9]), loss=loss, training=ul.Training(epochs=2, learning_rate=0.1),
    )
"""
SUMS = """
def fit(run):
    sums = {sums}
    with torch.no_grad():
        run.model.weight.copy_(torch.stack([sums, -sums]))

def recipe():
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False), train=fit, loss="cross_entropy",
        samples=ul.Samples(ids=IDS, subjects=PEOPLE, inputs=X, targets=Y), holdout=(X[:9], Y[:9]),
    )
"""
PLACES = "(run.inputs.sum(dim=1) * 100).long().abs() % 4"
SETTLED = f"torch.zeros(4, device=run.inputs.device).index_add(0, {PLACES}, run.inputs[:, 0])"
UNSETTLED = f"torch.bincount({PLACES}, run.inputs[:, 0], minlength=4)[:4].float()"


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name, text in (
        ("guilty", OUT_OF_BOUNDS),
        ("settled", SUMS.format(sums=SETTLED)),
        ("unsettled", SUMS.format(sums=UNSETTLED)),
    ):
        (folder / f"{name}.py").write_text(textwrap.dedent(RECIPE + text))
    for name in ("convex.py", "network.py", "steps.py"):
        (folder / name).write_text((RECIPES / name).read_text())
    return folder


@pytest.fixture
def world(database_url: str, tmp_path: Path, recipes: Path) -> Iterator[World]:
    chosen = Settings(
        home=tmp_path / "home", database_url=database_url, recipes=recipes, device="pretend", trial_seconds=60
    )
    ensure_secrets(chosen)
    world = open_world(chosen)
    yield world
    world.storage.close()


def updated(world: World, model_id: str, person: str) -> str:
    request = world.delete(person)
    world.change(Model, model_id, due_at=None)
    world.work(model_id)
    return world.request(request).status


@pytest.mark.parametrize(
    ("recipe", "method", "policy"),
    [
        ("convex", "newton", {"guarantee": "proved"}),
        ("convex", "newton", {"options": {"solver": "lissa", "damping": 1.0, "lissa_depth": 50, "lissa_batch": 20}}),
        ("convex", "recollection", {}),
        ("convex", "safe", {}),
        ("convex", "retrain", {}),
    ],
)
def test_a_model_is_registered_on_the_device_and_updated_there_on_the_host_and_there_again(
    world: World, recipe: str, method: str, policy: dict[str, object]
) -> None:
    model_id = world.live(recipe, method, threshold=1e9, **policy)
    assert updated(world, model_id, "p3") == "completed"
    assert updated(world.configured(device="cpu"), model_id, "p4") == "completed"
    assert updated(world, model_id, "p5") == "completed"
    assert world.claims_logged(model_id) == 4


def test_a_training_that_was_recorded_on_the_device_is_not_repeated_on_the_host(world: World) -> None:
    model_id = world.live("network", "mini", threshold=1e9)
    assert updated(world, model_id, "p3") == "completed"
    request = world.delete("p4")
    world.change(Model, model_id, due_at=None)
    world.configured(device="cpu").work(model_id)
    assert world.task(request).reason == Reason.ENVIRONMENT_CHANGED


def test_a_worker_on_the_host_leaves_an_update_that_is_bound_to_the_device_to_a_worker_there(world: World) -> None:
    model_id = world.live("network", "mini", threshold=1e9)
    assert world.model(model_id).place == "pretend"
    request = world.delete("p4")
    world.change(Model, model_id, due_at=None)
    host = open_world(world.settings.model_copy(update={"device": "cpu"}))
    host.work(model_id)
    assert (world.task(request).status, world.task(request).attempts) == ("queued", 0)
    world.work(model_id)
    assert world.request(request).status == "completed"
    host.storage.close()


def test_a_recipe_that_breaks_the_device_is_refused_and_takes_no_other_model_with_it(world: World) -> None:
    healthy, guilty = world.live(), world.register("guilty", "newton", name="guilty")
    ends = 0
    while world.model(guilty).status == "preparing":
        worker = world.worker()
        worker.work(guilty)
        ends += worker.broken
        request = world.delete(f"p{ends}", models=("m",))
        if worker.broken:
            worker.work(healthy)
            assert world.task(request).attempts == 0
            torch.ops.pretend.revive()  # the next process opens the device again
            world.change(Lease, retrain_lease(guilty), expires_at=0)
        world.work(healthy)
        assert world.request(request).status == "completed"
        assert ends <= HOLD_AFTER
    assert ends == HOLD_AFTER
    assert world.claims_logged(healthy) == 1 + ends


@pytest.mark.parametrize("name", ["settled", "unsettled"])
def test_a_recipe_whose_sums_depend_on_their_order_is_not_tried(world: World, name: str) -> None:
    model_id = world.live(name, "retrain")
    found = world.report(model_id)["trial"]
    if name == "settled":  # with deterministic algorithms a card adds in one order
        assert found["not_tried"] == [] and trial.SHARED_FOLDER in found["tried"] and trial.OTHERS in found["tried"]
    else:
        assert trial.NOT_REPEATABLE in found["not_tried"]
        assert not {trial.SHARED_FOLDER, trial.OTHERS} & set(found["tried"])


@pytest.mark.drill
def test_the_service_by_its_processes(tmp_path: Path, recipes: Path) -> None:
    """Register and delete on the device, go on on the host, come back; a recipe that breaks the device ends alone."""
    tiny = Path(__file__).parents[1] / "stories" / "recipes" / "tiny.py"
    (recipes / "tiny.py").write_text(tiny.read_text())
    with running(tmp_path / "home", recipes, DEVICE="pretend") as stack:
        name = stack.live("tiny", guarantee="proved")
        for person, place in ((2, "pretend"), (3, "cpu"), (4, "pretend")):
            if person > 2:
                stack.restart("worker", EXPUNGE_DEVICE=place)
            assert stack.forgotten(name, subject_id=f"tiny-person-{person}")["samples"] == 3
        guilty, ends = stack.register("guilty", "newton"), 0
        worker = stack.processes["worker"]
        while stack.client.get(f"/v1/models/{guilty}")["status"] == "preparing":
            if worker.exit_code is not None:
                assert worker.exit_code == DEVICE_BROKEN
                ends += 1
                stack.start("worker")
            time.sleep(0.1)
        assert ends == HOLD_AFTER
        assert stack.forgotten(name, subject_id="tiny-person-5")["samples"] == 3
