"""The method ``auto``: chosen once, at preparation, by measurements, and kept."""

from __future__ import annotations

from typing import Any

import pytest

from expunge.service.infra.tables import Generation
from expunge.service.models.retrain_plan import plan_retrain
from expunge.service.requests.states import Suppress
from expunge.workers.training import auto
from tests.workers.test_crashes import die_at
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
MANY: dict[str, Any] = {"requests_per_month": 1e8}
"""so many that even a tiny retraining is not short"""


def test_a_short_training_is_retrained_and_the_report_says_why(world: World) -> None:
    model_id = world.live("convex", "auto")
    generation, report = world.generation(model_id), world.report(model_id)
    assert (generation.method, generation.guarantee) == ("retrain", "exact")
    assert report["chosen"]["method"] == "retrain"
    assert "A retraining is short on this model" in report["chosen"]["why"]
    assert "a retraining takes" in report["advice"]["figures"]
    request = world.delete("p3")
    world.work(model_id)
    assert (world.task(request).status, world.head(model_id).method) == ("completed", "retrain")
    said = Claim.from_json(world.head(model_id).claim).assumptions
    assert any("chosen by measurements on everyone" in each for each in said)
    assert "advice" not in world.report(model_id)  # figures leave with the first deletion
    assert world.report(model_id)["chosen"]["method"] == "retrain"


@pytest.mark.drill
def test_many_requests_choose_what_costs_less_and_later_retrains_keep_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "SECONDS", 40.0)
    model_id = world.live("stable", "auto", min_guarantee="none", **MANY)
    method = world.generation(model_id).method
    offers = {each["method"]: each for each in world.report(model_id)["advice"]["offers"]}
    assert method != "retrain" and offers[method]["guarantee"] == world.generation(model_id).guarantee
    assert offers[method]["update"] < offers["retrain"]["update"]
    assert "costs less than retraining" in world.report(model_id)["chosen"]["why"]
    request = world.delete("person-3")
    world.work(model_id)
    assert (world.task(request).status, world.head(model_id).method) == ("completed", method)
    with world.database.write() as session:
        model = world.model(model_id)
        session.get_one(type(model), model_id).status = "exhausted"
        planned = plan_retrain(session, session.get_one(type(model), model_id))
        assert planned is not None
        candidate = planned.id
    kept = world.database
    with kept.read() as session:
        again = session.get_one(Generation, candidate)
        assert (again.method, (again.manifest or {})["chosen"]["method"]) == (method, method)


def test_a_worker_that_dies_after_the_choice_leaves_it_to_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.register("convex", "auto")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, "prepare-after-manifest", lambda other: other.work(model_id))
    assert world.generation(model_id).method == "retrain"

    def never(*_: object) -> None:
        raise AssertionError("the method was measured a second time")

    monkeypatch.setattr(auto, "measure", never)
    world.expire_lease(model_id)
    world.work(model_id)
    assert (world.model(model_id).status, world.generation(model_id).method) == ("live", "retrain")
    assert world.kinds().count("preparation.chosen") == 1


def test_without_the_guarantee_it_is_refused_with_reasons(world: World) -> None:
    model_id = world.register("elsewhere", "auto")
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused"
    assert "No method has the guarantee proved" in (model.reason or "")


def test_a_training_that_does_not_fit_into_the_time_asks_for_a_method(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "SECONDS", 0.0)
    model_id = world.register("convex", "auto")
    world.work(model_id)
    assert world.model(model_id).status == "refused"
    assert "Name a method." in (world.model(model_id).reason or "")


def test_who_asked_before_is_not_in_what_is_measured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.delete("p3", suppress=Suppress.EVERYWHERE)
    seen: list[int] = []
    real = auto.measure

    def watched(scene: Any, *rest: Any) -> Any:
        seen.append(len(scene.examples.people.distinct()))
        return real(scene, *rest)

    monkeypatch.setattr(auto, "measure", watched)
    everyone = len(set(world_people()))
    world.live("convex", "auto", on_suppressed="leave_out")
    assert seen == [everyone - 1]


def world_people() -> list[str]:
    from tests.workers.recipes import convex  # noqa: PLC0415

    return ["+".join(each) for each in convex.recipe().samples.people]
