"""An estimator of scikit-learn with weights, served: proved, erased rows do no harm, a changed weight is noticed."""

from __future__ import annotations

import pytest

from expunge.workers.guarantee.statements import ROWS
from tests.workers import meanwhile
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.fitted import read

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
POLICY = {"guarantee": "proved", "reference": "fixed-denominator"}


def test_a_weighted_estimator_is_proved_and_erased_rows_do_no_harm(world: World) -> None:
    model_id = world.live("estimator", "newton", **POLICY)
    request = world.delete("p3")
    meanwhile.DROPPED.update({"s9", "s10", "s11"})  # the owner erases them at once: the settings stay the same
    world.work(model_id)
    assert world.task(request).status == "completed", world.model(model_id).reason
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.PROVED
    assert world.head(model_id).number == 2


def test_another_weight_of_a_retained_sample_is_a_change(world: World) -> None:
    model_id = world.live("estimator", "newton", **POLICY)
    request = world.delete("p3")
    meanwhile.WEIGHT["s6"] = 9.0
    world.work(model_id)
    assert world.task(request).status == "blocked"
    assert "changed" in str(world.task(request).reason)


@pytest.mark.parametrize("recipe", ["fitted", "neighbours"])
def test_a_pipeline_that_is_fitted_inside_the_training_is_exact(world: World, recipe: str) -> None:
    model_id = world.live(recipe, "retrain")
    request = world.delete("p3")
    meanwhile.DROPPED.update({"s9", "s10", "s11"})
    world.work(model_id)
    assert world.task(request).status == "completed", world.model(model_id).reason
    head = world.head(model_id)
    claim = Claim.from_json(head.claim)
    assert (claim.guarantee, head.number) == (Guarantee.EXACT, 2)
    assert (ROWS in claim.assumptions) == (recipe == "neighbours")
    assert len(read(world.storage.store.read(head.checkpoint))) == 2
    assert world.head(world.live(recipe, "retrain", name="cold")).checkpoint == head.checkpoint
