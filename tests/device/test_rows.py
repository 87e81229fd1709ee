"""A recipe with rows trains on the device, in worlds that open it themselves: no process above them may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.test_service import recipes, world
from tests.workers.rows.data import EVERYBODY, forget, lay_out, published, trained_on
from tests.workers.rows.test_judge import CAP, distance
from tests.workers.rows.test_judge import PLAIN as HEAD
from tests.workers.rows.test_methods import NETWORK as TRAINED_HERE
from tests.workers.worlds import World

__all__ = ["recipes", "world"]

NETWORK = """
import torch
import unlearning as ul
from safetensors.torch import save


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2)):
    device = torch.device("pretend")
    x, y = rows.tensor("x").float()[:, None].to(device), rows.tensor("y").float()[:, None].to(device)
    x = (x - x.mean()) / x.std()
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert model[0].weight.device.type == "pretend"
    return ul.Published({"model.safetensors": save({name: value.cpu() for name, value in model.state_dict().items()})})
"""


@pytest.mark.parametrize("method", ["retrain", "shards"])
def test_a_version_on_the_device_is_what_a_registration_without_the_person_publishes(
    world: World, recipes: Path, method: str
) -> None:
    lay_out(recipes, recipe=NETWORK)
    held = world.live("rows", method, name="held", options={"shards": 2} if method == "shards" else {})
    leaving = trained_on(world)[0]
    forget(world, held, leaving)
    after = published(world, held)
    lay_out(recipes, (person for person in EVERYBODY if person != leaving), NETWORK)
    never = world.live("rows", method, name="never", options={"shards": 2} if method == "shards" else {})
    assert published(world, never) == after


@pytest.mark.parametrize("method", ["recollection", "safe", "cns", "mini", "rewind"])
def test_a_network_forgets_on_the_device(world: World, recipes: Path, method: str) -> None:
    lay_out(recipes, recipe=TRAINED_HERE)
    world = world.limited(distance_left=1e9)
    model_id = world.live("rows", method)
    first, second, third, fourth = trained_on(world)[:4]
    for leaving in ((first,), (second, third), (fourth,)):
        forget(world, model_id, *leaving)
    assert world.head(model_id).number == 4


def test_a_head_is_proved_on_the_device(world: World, recipes: Path) -> None:
    lay_out(recipes, recipe=HEAD)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01)
    everybody = trained_on(world)
    forget(world, model_id, everybody[0])
    assert distance(world, model_id, everybody[1:]) <= CAP
    assert world.head(model_id).claim["guarantee"] == "proved"
