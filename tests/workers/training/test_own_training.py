"""A recipe that trains by itself, through the service: published whole, forgotten exactly, purged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors

from expunge.service.infra.settings import Settings
from tests.harness.files import root_of
from tests.workers.recipes import own_training
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.methods.shards.ensemble import Ensemble, Stacked

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "retrain": ("retrain", {}),
    "late": ("late", {}),
    "late in three phases": ("late", {"early_share": [0.4, 0.7], "phase_shares": [0.6, 0.2, 0.2]}),
    "shards": ("shards", {"shards": 3, "slices": 2}),
    "shards with a core and a head": (
        "shards",
        {"shards": 2, "early_share": [0.6], "phase_shares": [0.8, 0.2], "stacked": 0.7},
    ),
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Fix the key that shards are drawn with: under one in twenty, a shard has too few samples for one batch."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


def published(world: World, model_id: str) -> dict[str, torch.Tensor]:
    return load_tensors(world.storage.store.read(world.head(model_id).checkpoint))


def served(method: str, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Load the published file into the user's own module, with nothing of the service."""
    members = [own_training.build() for _ in {name.split(".")[1] for name in tensors if name.startswith("members.")}]
    module: torch.nn.Module = own_training.build()
    if method == "shards":
        module = Stacked(members, 2) if "head.weight" in tensors else Ensemble(members, "cross_entropy")
    module.load_state_dict(tensors)
    return module.eval()


@pytest.mark.parametrize("name", METHODS)
def test_own_training_is_published_whole_and_forgets_exactly(world: World, name: str) -> None:
    method, options = METHODS[name]
    model_id = world.live("own_training", method, options=options)
    inputs, targets = own_training.recipe().holdout
    first = served(method, published(world, model_id))
    accuracy = float((first(inputs).argmax(dim=1) == targets).double().mean())
    assert accuracy == pytest.approx(world.head(model_id).holdout_accuracy)
    for person in ("p3", "p11"):
        request = world.delete(person)
        world.work(model_id)
        assert world.task(request).status == "completed", world.task(request).reason
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.updates) == (method, Guarantee.EXACT, 2)
    assert world.generation(model_id).spent == 0
    tensors = published(world, model_id)
    statistics = [value for key, value in tensors.items() if key.endswith("num_batches_tracked")]
    assert all(value.dtype == torch.int64 and int(value) > 0 for value in statistics)
    accuracy = float((served(method, tensors)(inputs).argmax(dim=1) == targets).double().mean())
    assert accuracy == pytest.approx(world.head(model_id).holdout_accuracy)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            each, marks=() if each in ("late in three phases", "shards with a core and a head") else pytest.mark.drill
        )
        for each in METHODS
    ],
)
def test_the_published_weights_are_those_of_a_training_that_never_saw_the_person(world: World, name: str) -> None:
    method, options = METHODS[name]
    deleted = world.live("own_training", method, name="deleted", options=options)
    world.delete("p5", models=("deleted",))
    world.work(deleted)
    world.delete("p5")
    never = world.register("own_training", method, name="never", options=options, leave_out_forgotten=True)
    world.work(never)
    one, other = published(world, deleted), published(world, never)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.mark.parametrize("name", ["late", "shards"])
def test_checkpoints_that_knew_the_person_are_gone(world: World, name: str) -> None:
    method, options = METHODS[name]
    model_id = world.live("own_training", method, options=options)
    before = world.head(model_id).state
    world.delete("p5")
    world.work(model_id)
    assert world.head(model_id).state != before
    assert not (root_of(world.storage.private) / before).exists()


@pytest.mark.parametrize(
    ("method", "said"), [("recollection", "late, shards or retrain"), ("newton", "late, shards or retrain")]
)
def test_a_method_that_cannot_follow_the_training_says_which_can(world: World, method: str, said: str) -> None:
    model_id = world.register("own_training", method)
    world.work(model_id)
    assert said in (world.model(model_id).reason or "")


def test_a_certificate_says_what_is_reused(world: World) -> None:
    model_id = world.live("own_training", "late")
    world.delete("p5")
    world.work(model_id)
    text = json.dumps(world.head(model_id).claim)
    assert "same reused secret numbers" in text
    assert "only where no person of its phases was deleted" in text
