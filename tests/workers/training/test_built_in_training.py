"""The built-in training with AdamW, dropout, batch normalisation and augmentation, through the service."""

from __future__ import annotations

import pytest
import torch

from expunge.workers.guarantee import statements
from tests.workers.recipes import built_in_training
from tests.workers.training.test_own_training import METHODS, published, served
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee


@pytest.mark.parametrize("name", ["retrain", "late", "shards"])
def test_it_is_published_whole_and_forgets_exactly(world: World, name: str) -> None:
    method, options = METHODS[name]
    model_id = world.live("built_in_training", method, options=options)
    request = world.delete("p3")
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.updates) == (method, Guarantee.EXACT, 1)
    tensors = published(world, model_id)
    statistics = [value for key, value in tensors.items() if key.endswith("num_batches_tracked")]
    assert statistics and all(value.dtype == torch.int64 and int(value) > 0 for value in statistics)
    inputs, targets = built_in_training.recipe().holdout
    accuracy = float((served(method, tensors)(inputs).argmax(dim=1) == targets).double().mean())
    assert accuracy == pytest.approx(world.head(model_id).holdout_accuracy)


@pytest.mark.parametrize("name", ["late", "shards"])
def test_the_published_weights_are_those_of_a_training_that_never_saw_the_person(world: World, name: str) -> None:
    method, options = METHODS[name]
    deleted = world.live("built_in_training", method, name="deleted", options=options)
    world.delete("p5", models=("deleted",))
    world.work(deleted)
    world.delete("p5")
    never = world.register("built_in_training", method, name="never", options=options, leave_out_forgotten=True)
    world.work(never)
    one, other = published(world, deleted), published(world, never)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_rewinding_it_repeats_its_last_steps_and_claims_nothing(world: World) -> None:
    model_id = world.live("built_in_training", "rewind")
    before = published(world, model_id)
    request = world.delete("p3")
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.epsilon) == ("rewind", Guarantee.NONE, None)
    assert statements.REPEATED_BUFFERS in claim.secret_state
    assert statements.BUFFERS not in claim.secret_state
    after = published(world, model_id)
    assert int(after["1.num_batches_tracked"]) == int(before["1.num_batches_tracked"]) == 30, "every step, once"
    assert float(after["1.running_var"].min()) > 0, "noise would not keep a variance above zero"
    assert not torch.equal(after["1.running_mean"], before["1.running_mean"]), "the steps went through the statistics"


@pytest.mark.parametrize("guarantee", ["proved", "estimated", "calibrated"])
def test_a_rewind_of_it_claims_no_distance(world: World, guarantee: str) -> None:
    options = {"feature_norm": 10.0}
    model_id = world.register("built_in_training", "rewind", guarantee=guarantee, options=options)
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert ("running statistics" if guarantee == "calibrated" else "The bound of a rewind follows plain") in reason


@pytest.mark.parametrize("method", ["recollection", "newton", "mini"])
def test_a_method_that_cannot_follow_it_says_why_and_which_can(world: World, method: str) -> None:
    model_id = world.register("built_in_training", method)
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert f"{method} follows plain gradient steps" in reason and "late, shards or retrain" in reason
