"""The built-in training with AdamW, dropout, batch normalisation and augmentation, through the service."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load

from expunge_workers.guarantee import statements
from tests.workers.rows.data import published
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee


def test_rewinding_it_repeats_its_last_steps_and_claims_nothing(world: World) -> None:
    model_id = world.live("built_in_training", "rewind")
    before = load(published(world, model_id))
    request = world.delete("p3")
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.epsilon) == ("rewind", Guarantee.NONE, None)
    assert statements.REPEATED_BUFFERS in claim.secret_state
    assert statements.BUFFERS not in claim.secret_state
    after = load(published(world, model_id))
    assert int(after["1.num_batches_tracked"]) == int(before["1.num_batches_tracked"]) == 30, "every step, once"
    assert float(after["1.running_var"].min()) > 0, "noise would not keep a variance above zero"
    assert not torch.equal(after["1.running_mean"], before["1.running_mean"]), "the steps went through the statistics"


def test_a_rewind_of_it_is_not_calibrated(world: World) -> None:
    model_id = world.register("built_in_training", "rewind", guarantee="calibrated", options={"feature_norm": 10.0})
    world.work(model_id)
    assert "running statistics" in (world.model(model_id).reason or "")


@pytest.mark.parametrize("method", ["recollection", "newton"])
def test_a_method_that_cannot_follow_it_says_why_and_which_can(world: World, method: str) -> None:
    model_id = world.register("built_in_training", method)
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert f"{method} follows plain gradient steps" in reason and "late, shards or retrain" in reason
