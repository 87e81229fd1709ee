"""A part that is declared public and is a tensor of a version published here: people who may ask are in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file

from expunge.service.infra.tables import Version
from tests.workers.worlds import World
from unlearning.model.parts import digest_of

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

RECIPE = """
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import unlearning as ul
from tests.workers import meanwhile

WEIGHT = load_file(Path(__file__).with_name("start.safetensors"))["weight"]


def model():
    first = nn.Linear(4, WEIGHT.shape[0], bias=False)
    with torch.no_grad():
        first.weight.copy_(WEIGHT)
    return nn.Sequential(first.requires_grad_(False), nn.Linear(WEIGHT.shape[0], 2, bias=False))


def recipe():
    ids, subjects, x, y = meanwhile.people()
    return ul.Recipe(
        model=model,
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=x, targets=y),
        holdout=(x[:10], y[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1),
        public={{"0.weight": "{digest}"}},
    )
"""


def starting_from(world: World, folder: Path, weight: torch.Tensor) -> World:
    folder.mkdir()
    save_file({"weight": weight}, folder / "start.safetensors")
    (folder / "child.py").write_text(RECIPE.format(digest=digest_of(weight)))
    return world.configured(recipes=folder)


def test_a_public_part_that_is_a_published_version_is_refused(world: World, tmp_path: Path) -> None:
    parent = world.live("convex", "retrain", name="parent")
    (weight,) = load_tensors(world.storage.store.read(world.head(parent).checkpoint)).values()
    child = starting_from(world, tmp_path / "child", weight)
    model_id = child.register("child", "retrain", name="child")
    child.work(model_id)
    reason = child.model(model_id).reason or ""
    assert child.model(model_id).status == "refused"
    assert "'0.weight' public, and it is a tensor of version 1 of the model 'parent'" in reason


def test_a_purged_version_and_another_tensor_are_no_ground(world: World, tmp_path: Path) -> None:
    parent = world.live("convex", "retrain", name="parent")
    (weight,) = load_tensors(world.storage.store.read(world.head(parent).checkpoint)).values()
    starting_from(world, tmp_path / "other", weight + 1).live("child", "retrain", name="other")
    world.change(Version, world.head(parent).id, status="purged")
    starting_from(world, tmp_path / "child", weight).live("child", "retrain", name="child")


def test_two_models_may_share_a_part_that_both_declare_public(world: World, tmp_path: Path) -> None:
    given = starting_from(world, tmp_path / "shared", torch.arange(12.0).reshape(3, 4) / 12)
    given.live("child", "retrain", name="one")
    given.live("child", "retrain", name="two")
