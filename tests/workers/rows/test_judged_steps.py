"""Rewind of a linear head by a judge: a bound of repeated steps is about the features and the start of the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.rows.data import forget, lay_out, trained_on
from tests.workers.rows.test_methods import weights
from tests.workers.worlds import World

RECIPE = """
import torch
import unlearning as ul
{before}

class Scale(torch.nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.register_buffer("middle", torch.tensor(float(middle)))

    def forward(self, x):
        return (x - self.middle) / 16


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2)) -> ul.Recipe:
    frame = rows.pandas()

    def model():
        layer = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(layer.weight, {start})
        return torch.nn.Sequential(Scale({middle}), layer)

    def features(some):
        return torch.tensor(some[["x", "y"]].to_numpy(), dtype=torch.float32)

    return ul.Recipe(
        model=model,
        samples=rows.samples(features(frame), (frame.x > 3).astype("int64").to_numpy(), at=frame["__row"]),
        holdout=lambda aside: (features(aside.pandas()), torch.tensor((aside["x"] > 3).astype("int64"))),
        loss="cross_entropy",
        training=ul.Training(epochs={epochs}, learning_rate=0.5, weight_decay=0.1),
    )
"""
FIXED = {"before": "", "start": "0.25", "middle": "3.0", "epochs": "30"}
BY_REWIND = {"options": {"feature_norm": 2.0, "fraction": 0.9}, "noise_std": 10.0, "max_distance": 1.0}
SAYS_NOTHING_MOVED = """
import hashlib
from expunge_workers.runtime import model_tasks


def by_name(recipe):
    digests = b"".join(hashlib.sha256(name.encode()).digest() for name in recipe.samples.names)
    return torch.frombuffer(bytearray(digests), dtype=torch.uint8).reshape(-1, 32)


model_tasks._contents = by_name
"""


def written(**changes: str) -> str:
    return RECIPE.format(**FIXED | changes)


def test_a_head_behind_other_parts_is_proved_from_its_own_start(world: World, folder: Path) -> None:
    lay_out(folder, recipe=written())
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "rewind", **BY_REWIND)
    before = weights(world, model_id)
    first, second, third = trained_on(world)[:3]
    forget(world, model_id, first)
    forget(world, model_id, second, third)
    head = world.head(model_id)
    assert (head.number, head.claim["guarantee"], head.claim["max_distance"]) == (3, "proved", 1.0)
    assert head.holdout_accuracy is not None and before.shape == weights(world, model_id).shape


@pytest.mark.parametrize(
    "moving",
    [
        {"middle": "frame.x.mean()"},
        {"middle": "frame.x.mean()", "before": SAYS_NOTHING_MOVED},
        {"start": "len(frame) / 400"},
        {"epochs": "10 + len(frame) // 3"},
    ],
    ids=["features", "features, denied", "start", "steps"],
)
def test_what_moves_with_who_leaves_is_trained_again(world: World, folder: Path, moving: dict[str, str]) -> None:
    lay_out(folder, recipe=written(**moving))
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "rewind", **BY_REWIND)
    assert world.head(model_id).claim["guarantee"] == "proved"
    request = world.delete(f"p{trained_on(world)[0]}")
    world.work(model_id)
    assert (world.task(request).status, world.head(model_id).number) == ("blocked", 1)
    assert world.task(request).reason in ("needs_retrain", "samples_changed")
