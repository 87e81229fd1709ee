"""A recipe with rows trains on the device, in worlds that open it themselves: no process above them may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.test_service import recipes, world
from tests.workers.rows.data import EVERYBODY, forget, lay_out, published, trained_on
from tests.workers.rows.test_judge import CAP, distance
from tests.workers.rows.test_judge import PLAIN as HEAD
from tests.workers.rows.test_judged_steps import BY_REWIND, written
from tests.workers.rows.test_methods import NETWORK as TRAINED_HERE
from tests.workers.worlds import World

__all__ = ["recipes", "world"]

NETWORK = """
import torch
import unlearning as ul
from safetensors.torch import load, save


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2), run: ul.TrainingRun = ul.run()):
    device = torch.device("pretend")
    x, y = rows.tensor("x").float()[:, None].to(device), rows.tensor("y").float()[:, None].to(device)
    x = (x - x.mean()) / x.std()
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 1)).to(device)
    if run.start is not None:
        model.load_state_dict(load(run.start["model.safetensors"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert model[0].weight.device.type == "pretend"
    return ul.Published({"model.safetensors": save({name: value.cpu() for name, value in model.state_dict().items()})})
"""


CALIBRATED = {
    "guarantee": "calibrated",
    "calibration": {"alpha": 0.5, "orders": 1, "sizes": [1, 6]},
    "max_distance": 0.03,
    "noise_std": 30.0,
}


def leaving(world: World) -> list[list[int]]:
    """Three people one by one, two together, one again."""
    first, second, third, fourth, fifth, sixth, *_ = trained_on(world)
    return [[first], [second], [third], [fourth, fifth], [sixth]]


@pytest.mark.parametrize("method", ["retrain", "shards", "late"])
def test_a_version_on_the_device_is_what_a_registration_without_the_people_publishes(
    world: World, recipes: Path, method: str
) -> None:
    lay_out(recipes, recipe=NETWORK)
    options = {"shards": 2} if method == "shards" else {}
    held = world.live("rows", method, name="held", options=options)
    together = leaving(world)
    for people in together:
        forget(world, held, *people)
    after, gone = published(world, held), {person for people in together for person in people}
    lay_out(recipes, (person for person in EVERYBODY if person not in gone), NETWORK)
    assert published(world, world.live("rows", method, name="never", options=options)) == after


@pytest.mark.parametrize("method", ["recollection", "safe", "cns", "mini", "rewind"])
def test_a_network_forgets_on_the_device(world: World, recipes: Path, method: str) -> None:
    lay_out(recipes, recipe=TRAINED_HERE)
    world = world.limited(distance_left=1e9)
    model_id = world.live("rows", method)
    for people in leaving(world):
        forget(world, model_id, *people)
    assert world.head(model_id).number == 6


def test_a_head_is_proved_on_the_device(world: World, recipes: Path) -> None:
    lay_out(recipes, recipe=HEAD)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01)
    staying = trained_on(world)
    for people in leaving(world):
        forget(world, model_id, *people)
        staying = [person for person in staying if person not in people]
        assert distance(world, model_id, staying) <= CAP
        assert world.head(model_id).claim["guarantee"] == "proved"


def test_a_head_is_calibrated_on_the_device(world: World, recipes: Path) -> None:
    lay_out(recipes, recipe=HEAD.replace("aside=0.2", "aside=0.0001"))
    model_id = world.live("rows", "newton", **CALIBRATED)
    for people in leaving(world):
        forget(world, model_id, *people)
        assert world.head(model_id).claim["guarantee"] == "calibrated"


def test_steps_are_judged_on_the_device(world: World, recipes: Path) -> None:
    lay_out(recipes, recipe=written())
    model_id = world.live("rows", "rewind", **BY_REWIND)
    forget(world, model_id, *trained_on(world)[:2])
    assert world.head(model_id).claim["guarantee"] == "proved"
