"""Methods that start from the weights alone, after trainings whose steps nobody could follow, through the service."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from expunge.workers.guarantee import statements
from tests.workers.training.test_own_training import published
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee

METHODS: dict[str, dict[str, Any]] = {"safe": {}, "cns": {"damping": 3.0}}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", ["own_training", "built_in_training"])
def test_it_forgets_after_any_training_and_claims_nothing(world: World, recipe: str, method: str) -> None:
    model_id = world.live(recipe, method, options=METHODS[method])
    before = published(world, model_id)
    request = world.delete("p3")
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.epsilon) == (method, Guarantee.NONE, None)
    assert statements.BUFFERS in claim.secret_state
    after = published(world, model_id)
    names = [name for name in after if name.endswith(STATISTICS)]
    assert len(names) == 3
    assert all(torch.equal(after[name], before[name]) for name in names), "buffers get neither a step nor noise"
    assert not [name for name in after if name not in names and torch.equal(after[name], before[name])]


def test_a_certificate_of_a_model_without_buffers_says_nothing_of_them(world: World) -> None:
    model_id = world.live("steps", "safe")
    assert statements.BUFFERS not in Claim.from_json(world.head(model_id).claim).secret_state


@pytest.mark.parametrize(
    ("recipe", "said"), [("own_training", "trains the model itself"), ("built_in_training", "running statistics")]
)
def test_what_a_calibration_does_not_cover_is_refused(world: World, recipe: str, said: str) -> None:
    model_id = world.register(recipe, "safe", guarantee="calibrated")
    world.work(model_id)
    assert said in (world.model(model_id).reason or "")


def test_a_training_of_the_recipe_runs_in_a_process_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recipe's code keeps of people must not stay in the worker."""

    def here(*arguments: object) -> None:
        raise AssertionError("the training ran in the worker's process")

    monkeypatch.setattr("unlearning.model.training.train_by_recipe", here)
    world.live("own_training", "safe")
