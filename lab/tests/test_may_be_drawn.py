"""Attacks are measured on drawn people, never on people who asked to be forgotten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from expunge.service.infra.tables import DeletionRequest
from expunge.service.requests import cancellation, intake
from expunge.workers.runtime import recipes
from expunge_lab import audit_epsilon, evaluate
from expunge_lab.attack.may_be_drawn import may_be_drawn
from tests.workers.worlds import RECIPES, TENANT, World
from unlearning.recipe import Recipe
from unlearning.types import RecipeError, Refused

QUICK = ["--seeds", "1", "--shadows", "0", "--trials", "0", "--methods", "newton", "--device", "cpu", "--no-plot"]


def given() -> Recipe:
    return recipes.load(RECIPES, "convex").recipe


def people(recipe: Recipe) -> set[str]:
    return {person for names in recipe.samples.people for person in names}


def test_nobody_who_asked_is_left_to_be_drawn(world: World) -> None:
    model = world.live(guarantee="proved")
    world.delete("p1", models=("m",))
    world.stranger("p2")
    world.delete(samples=[given().samples.ids[list(given().samples.people).index(("p3",))]])
    left = may_be_drawn(given(), TENANT, world.settings)
    assert people(given()) - people(left) == {"p1", "p2", "p3"}
    world.work(model)
    assert people(may_be_drawn(given(), TENANT, world.settings)) == people(left)


def test_inputs_and_targets_stay_with_their_samples(world: World) -> None:
    world.delete("p1")
    whole, left = given(), may_be_drawn(given(), TENANT, world.settings)
    rows = torch.tensor([list(whole.samples.ids).index(each) for each in left.samples.ids])
    for now, before in zip(left.samples.tensors(), whole.samples.tensors(), strict=True):
        assert torch.equal(now, before[rows])


def test_who_asked_is_not_in_the_holdout_either(world: World) -> None:
    world.delete("p1")
    named = replace(given(), holdout_subjects=["p1", "seen", *["other"] * 8])
    left = may_be_drawn(named, TENANT, world.settings)
    assert left.holdout_subjects == (("seen",), *[("other",)] * 8)
    assert torch.equal(left.holdout_tensors[0], named.holdout_tensors[0][1:])


def test_a_cancelled_request_and_another_tenants_are_none(world: World) -> None:
    world.live(guarantee="proved")
    with world.database.write() as session:
        order, window = intake.Order(subject_id="p1"), intake.Windows(cancel_seconds=3600)
        request = intake.accept(session, world.storage.pepper, TENANT, order, window).request.id
    assert people(given()) - people(may_be_drawn(given(), TENANT, world.settings)) == {"p1"}
    with world.database.write() as session:
        cancellation.cancel(session, session.get_one(DeletionRequest, request))
    assert people(may_be_drawn(given(), TENANT, world.settings)) == people(given())
    world.delete("p2")
    assert people(may_be_drawn(given(), "another", world.settings)) == people(given())


def test_weights_that_were_trained_on_somebody_who_asked_are_refused(world: World) -> None:
    brought = replace(given(), weights=given().model().state_dict())
    assert may_be_drawn(brought, TENANT, world.settings) is brought
    world.delete("p1")
    with pytest.raises(Refused, match="trained on 3 samples of people who asked"):
        may_be_drawn(brought, TENANT, world.settings)


def test_where_everybody_asked_nothing_is_measured(world: World) -> None:
    for person in sorted(people(given())):
        world.delete(person)
    with pytest.raises(RecipeError, match="no samples"):
        may_be_drawn(given(), TENANT, world.settings)


@pytest.mark.parametrize("missing", ["database_url", "secrets"])
def test_without_the_record_nothing_is_drawn(world: World, tmp_path: Path, missing: str) -> None:
    elsewhere = {"database_url": f"sqlite:///{tmp_path / 'none.db'}", "secrets": tmp_path / "none"}
    settings = world.configured(**{missing: elsewhere[missing]}).settings
    with pytest.raises(Refused, match="record of requests") as refusal:
        may_be_drawn(given(), TENANT, settings)
    assert "where a worker runs" in refusal.value.hint


def test_the_command_measures_those_who_did_not_ask(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.delete("p1")
    monkeypatch.setattr(evaluate, "Settings", lambda: world.settings)
    place, page = ["--recipe", str(RECIPES / "convex.py")], tmp_path / "page.html"
    report = ["--report", str(page), "--json"]
    for tenant, samples, words in (([], 36, "No deletion request was read"), (["--tenant", TENANT], 33, "Nobody who")):
        assert evaluate.main([*place, *tenant, *QUICK, *report]) == 0
        assert {row["n"] for row in json.loads(capsys.readouterr().out)} == {samples}
        assert words in page.read_text()


def test_canaries_are_drawn_from_those_who_did_not_ask(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.delete("p1")
    monkeypatch.setattr(audit_epsilon, "Settings", lambda: world.settings)
    arguments = ["--recipe", str(RECIPES / "convex.py"), "--tenant", TENANT, "--methods", "newton"]
    request = audit_epsilon._request(audit_epsilon._parser().parse_args(arguments))
    assert people(request.cast.recipe) == people(given()) - {"p1"}
