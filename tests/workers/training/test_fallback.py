"""The fallback ``retrain`` takes the method's place where the method does not help on the model."""

from __future__ import annotations

import pytest

from expunge_service.infra.tables import StoredVector
from tests.workers.test_crashes import die_at
from tests.workers.update.test_budgets import trained_on
from tests.workers.worlds import World

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""what does not differ between the databases"""


@SQLITE
def test_a_method_that_does_not_help_is_replaced_by_a_retrain_at_registration(world: World) -> None:
    model_id = world.live("unstable", fallback="retrain")
    generation = world.generation(model_id)
    switched = (generation.report or {})["switched"]
    assert (switched["from"], switched["to"]) == ("recollection", "retrain")
    assert (generation.method, generation.guarantee) == ("retrain", "exact")
    assert "times as far from retraining" in switched["why"]
    assert "preparation.switched" in world.kinds()
    request = world.delete("person-3")
    world.work(model_id)
    task = world.task(request)
    assert (task.status, task.method, world.head(model_id).number) == ("completed", "retrain", 2)
    assert world.count(StoredVector) == 0


@SQLITE
def test_a_worker_that_dies_after_the_switch_prepares_the_retrain(world: World) -> None:
    model_id = world.register("unstable", fallback="retrain")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, "publish-inside-commit", lambda other: other.work(model_id))
    world.expire_lease(model_id)
    world.work(model_id)
    assert (world.model(model_id).status, world.generation(model_id).method) == ("live", "retrain")
    assert world.kinds().count("preparation.switched") == 1


@pytest.mark.parametrize("fallback", ["hold", "retrain"])
def test_the_request_after_the_last_round_of_safe_ends_visibly(world: World, fallback: str) -> None:
    """One update more than the published step is made for: it is blocked with its ways out, or retrained."""
    options = {"step": "published", "rounds": 1}
    model_id = world.live("held_out", "safe", guarantee="none", options=options, fallback=fallback)
    one, other, *_ = trained_on(world)
    first = world.delete(one)
    world.work(model_id)
    assert (world.task(first).status, world.head(model_id).number) == ("completed", 2)
    second = world.delete(other)
    world.work(model_id)
    if fallback == "hold":
        assert (world.task(second).status, world.task(second).reason) == ("blocked", "needs_retrain")
        assert world.head(model_id).number == 2
        return
    for _ in range(3):
        world.work(model_id)
    task = world.task(second)
    assert (task.status, task.method, world.head(model_id).number) == ("completed", "retrain", 3)
