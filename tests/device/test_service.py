"""The service on a device: updates that move between devices."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge_service.infra.settings import Settings, ensure_secrets
from expunge_service.infra.tables import Model
from expunge_service.requests import Reason
from tests.harness.draws import fix_draw
from tests.harness.stack import running
from tests.workers.worlds import RECIPES, World, open_world


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A copy of the tests' recipes and their tables."""
    folder = tmp_path / "recipes"
    shutil.copytree(RECIPES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def world(database_url: str, tmp_path: Path, recipes: Path) -> Iterator[World]:
    chosen = Settings(
        home=tmp_path / "home", database_url=database_url, recipes=recipes, device="pretend", trial_seconds=60
    )
    fix_draw(chosen)
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


@pytest.mark.drill
def test_the_service_by_its_processes(tmp_path: Path, recipes: Path) -> None:
    """Register and delete on the device, go on on the host, come back."""
    for tiny in (Path(__file__).parents[1] / "stories" / "recipes").glob("tiny.*"):
        shutil.copy(tiny, recipes)
    with running(tmp_path / "home", recipes, DEVICE="pretend") as stack:
        name = stack.live("tiny", guarantee="proved")
        for person, place in ((2, "pretend"), (3, "cpu"), (4, "pretend")):
            if person > 2:
                stack.restart("worker", EXPUNGE_DEVICE=place)
            assert stack.forgotten(name, subject_id=f"tiny-person-{person}")["samples"] == 3
