"""An exact update in another environment than the version before it trains the whole again, and says so."""

from __future__ import annotations

import platform

import pytest
import torch

from expunge_service.infra.tables import Version
from expunge_workers import doctor
from expunge_workers.storage.environment import Environment, moved
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim

CPU = torch.device("cpu")
OLD = "0.1"


def forget(world: World, model_id: str, person: str) -> Claim:
    request = world.delete(person, models=(world.model(model_id).name,))
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason
    return Claim.from_json(world.head(model_id).claim)


def exchange(world: World, model_id: str, name: str) -> Environment:
    """Let the current version be one of another version of the package; return its environment."""
    recorded = Environment.from_json(world.head(model_id).environment or {})
    other = Environment(recorded.machine, {**recorded.distributions, name: OLD})
    world.change(Version, world.head(model_id).id, environment=other.to_json())
    return other


def test_an_update_in_another_environment_says_so_and_the_next_one_does_not(world: World) -> None:
    model_id = world.live("means", "shards", options={"shards": 3})
    other = exchange(world, model_id, "numpy wheel")
    (found,) = [each for each in doctor.examine(world.settings) if each.name == "generation of m"]
    assert found.well and "It trains the whole model again" in found.what and f"numpy wheel {OLD}" in found.what
    (sentence,) = [each for each in forget(world, model_id, "p5").checked if "environment" in each]
    here = Environment.of(CPU)
    assert f"numpy wheel {OLD}" in sentence
    assert all(each.digest[:12] in sentence for each in (here, other))
    assert world.head(model_id).environment == here.to_json()
    assert not any("environment" in each for each in forget(world, model_id, "p6").checked)


def test_a_version_of_an_earlier_release_is_compared_by_what_it_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.live("means", "shards", options={"shards": 3})
    world.change(Version, world.head(model_id).id, environment=None)
    assert not any("environment" in each for each in forget(world, model_id, "p5").checked)
    recorded = platform.python_version()
    monkeypatch.setattr(platform, "python_version", lambda: OLD)
    world.change(Version, world.head(model_id).id, environment=None)
    assert any(f"python {recorded}, now {OLD}" in each for each in forget(world, model_id, "p6").checked)


def test_everything_importable_the_device_and_the_threads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Environment.of(CPU)
    assert {"torch", "numpy", "pytest", "expunge"} <= here.distributions.keys()
    assert {"python", "device", "instructions", "threads"} <= here.machine.keys()
    assert moved(here, here.to_json(), {}) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    change = moved(Environment.of(CPU), here.to_json(), {})
    assert change is not None and change.differences == (f"threads {here.machine['threads']}, now 77",)
    gone = Environment(here.machine, {each: value for each, value in here.distributions.items() if each != "pytest"})
    assert gone.differences(here, recorded=False) == (f"pytest {here.distributions['pytest']}, now none",)
    assert here.differences(gone, recorded=True) == (), "an earlier release did not look at it"
