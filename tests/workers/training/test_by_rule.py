"""A method that was not named: chosen by a rule, at preparation, and kept."""

from __future__ import annotations

import pytest

from expunge_service.infra.tables import Generation
from expunge_service.models.retrain_plan import plan_retrain
from expunge_workers.training import start
from tests.workers.test_crashes import die_at
from tests.workers.worlds import World
from unlearning.accounting import policy
from unlearning.accounting.certificate import Claim
from unlearning.types import Refused

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize(
    ("small", "recipe", "method"),
    [(policy.SMALL, "convex", "retrain"), (0, "convex", "newton"), (0, "network", "retrain")],
    ids=["few numbers", "a proof", "no proof"],
)
def test_counts_decide_and_the_reason_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, small: int, recipe: str, method: str
) -> None:
    monkeypatch.setattr(policy, "SMALL", small)
    model_id = world.live(recipe, "auto")
    assert world.generation(model_id).method == method
    chosen = world.report(model_id)["chosen"]
    assert chosen == {"method": method, "why": chosen["why"]} and chosen["why"]
    request = world.delete("p3")
    world.work(model_id)
    assert (world.task(request).status, world.head(model_id).method) == ("completed", method)
    said = Claim.from_json(world.head(model_id).claim).assumptions
    assert any("chosen by the counts of samples and features" in each for each in said)
    assert world.report(model_id)["chosen"] == chosen, "it follows from counts, so it outlives a deletion"


def test_a_later_retrain_keeps_the_method(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "SMALL", 0)
    model_id = world.live("convex", "auto", fallback="retrain")
    monkeypatch.setattr(policy, "SMALL", 10**9)
    with world.database.write() as session:
        model = session.get_one(type(world.model(model_id)), model_id)
        model.status = "exhausted"
        planned = plan_retrain(session, model)
        assert planned is not None
        candidate = planned.id
    with world.database.read() as session:
        again = session.get_one(Generation, candidate)
        assert (again.method, (again.manifest or {})["chosen"]["method"]) == ("newton", "newton")


def test_a_worker_that_dies_after_the_choice_leaves_it_to_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.register("convex", "auto")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, "prepare-after-manifest", lambda other: other.work(model_id))
    assert world.generation(model_id).method == "retrain"
    monkeypatch.setattr(start, "method_by_rule", lambda *_: ("newton", "another day"))
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.generation(model_id).method == "retrain"


def test_a_recipe_that_cannot_be_opened_is_refused_and_not_taken_for_one_without_a_proof(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise Refused("The model cannot be built.", "Mend the recipe.")

    monkeypatch.setattr(policy, "SMALL", 0)
    monkeypatch.setattr(start, "open_model", refused)
    model_id = world.register("convex", "auto")
    world.work(model_id)
    model = world.model(model_id)
    assert (model.status, model.reason) == ("refused", "The model cannot be built. Mend the recipe.")
    assert "chosen" not in (world.generation(model_id).manifest or {})
