"""An exact update in another environment than the version before it trains the whole again, and says so."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch

from expunge.service.infra.pseudonyms import subject_digest
from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import Version
from expunge.workers import doctor
from expunge.workers.storage.environment import Environment, moved
from tests.workers.recipes import built_in_training
from tests.workers.training.test_own_training import published
from tests.workers.worlds import TENANT, World
from unlearning.accounting.certificate import Claim
from unlearning.methods.late import Late
from unlearning.model import fit
from unlearning.model.problem import Problem

CPU = torch.device("cpu")
OLD = "0.1"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Fix the key that people draw their phase with: somebody joins late."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the phases that were trained, in order."""
    trained: list[str] = []
    real = fit.fit

    def spied(problem: Any, examples: Any, phase: fit.Phase, *more: Any) -> Any:
        trained.append(phase.name)
        return real(problem, examples, phase, *more)

    monkeypatch.setattr(fit, "fit", spied)
    return trained


def latecomers(world: World) -> list[str]:
    """People who join in the last phase."""
    problem, order = Problem(built_in_training.recipe()), Late().order
    names = [f"p{number}" for number in range(24)]
    digests = {name: subject_digest(world.storage.pepper, TENANT, name) for name in names}
    return [name for name in names if order.phase_of(problem, [digests[name]]) == 1]


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


def test_a_checkpoint_of_another_environment_is_not_used(world: World, phases: list[str]) -> None:
    first, second = latecomers(world)[:2]
    model_id, control = (world.live("built_in_training", "late", name) for name in ("m", "control"))
    other = exchange(world, model_id, "torch")
    phases.clear()
    claim = forget(world, model_id, first)
    assert phases == ["phase 1", "phase 2"]
    (sentence,) = [each for each in claim.checked if "environment" in each]
    here = Environment.of(CPU)
    assert f"torch {OLD}, now {here.distributions['torch']}" in sentence
    assert all(each.digest[:12] in sentence for each in (here, other))
    assert world.head(model_id).environment == here.to_json()

    phases.clear()
    assert not any("environment" in each for each in forget(world, control, first).checked)
    assert phases == ["phase 2"]
    assert published(world, model_id).keys() == published(world, control).keys()
    assert world.head(model_id).checkpoint == world.head(control).checkpoint

    phases.clear()
    assert not any("environment" in each for each in forget(world, model_id, second).checked)
    assert phases == ["phase 2"], "its version is of this environment again"


def test_shards_of_bytes_are_all_trained_again_and_no_deletion_is_blocked(world: World, phases: list[str]) -> None:
    model_id = world.live("of_bytes", "shards", options={"shards": 3})
    exchange(world, model_id, "numpy wheel")
    (found,) = [each for each in doctor.examine(world.settings) if each.name == "generation of m"]
    assert found.well and "It trains the whole model again" in found.what and f"numpy wheel {OLD}" in found.what
    phases.clear()
    assert any(f"numpy wheel {OLD}" in each for each in forget(world, model_id, "p5").checked)
    assert len(phases) == 3


def test_a_version_of_an_earlier_release_is_compared_by_what_it_recorded(
    world: World, phases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = latecomers(world)[:2]
    model_id = world.live("built_in_training", "late")
    world.change(Version, world.head(model_id).id, environment=None)
    phases.clear()
    assert not any("environment" in each for each in forget(world, model_id, first).checked)
    assert phases == ["phase 2"], "what it recorded is the same here"

    recorded = platform.python_version()
    monkeypatch.setattr(platform, "python_version", lambda: OLD)
    world.change(Version, world.head(model_id).id, environment=None)
    phases.clear()
    assert any(f"python {recorded}, now {OLD}" in each for each in forget(world, model_id, second).checked)
    assert phases == ["phase 1", "phase 2"]


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
