"""Attacks are measured on drawn people, never on people who asked to be forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from expunge_lab import audit_epsilon, evaluate
from expunge_lab.recipe import load_recipe
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.tables import DeletionRequest
from expunge_service.requests import cancellation, intake
from tests.workers.worlds import RECIPES, TENANT, World
from unlearning.recipe import Recipe
from unlearning.types import Refused

QUICK = ["--seeds", "1", "--shadows", "0", "--trials", "0", "--methods", "newton", "--device", "cpu", "--no-plot"]


def left(world: World, tenant_id: str | None = TENANT) -> Recipe:
    """The recipe as the laboratory loads it; without a tenant nobody is left out."""
    return load_recipe(RECIPES / "convex.py", world.settings, tenant_id).recipe


def people(recipe: Recipe) -> set[str]:
    return {person for names in recipe.samples.people for person in names}


def test_nobody_who_asked_is_left_to_be_drawn(world: World) -> None:
    model = world.live(guarantee="proved")
    everybody = left(world, None)
    world.delete("p1", models=("m",))
    world.stranger("p2")
    world.delete(samples=[everybody.samples.ids[list(everybody.samples.people).index(("p3",))]])
    assert people(everybody) - people(left(world)) == {"p1", "p2", "p3"}
    world.work(model)
    assert people(everybody) - people(left(world)) == {"p1", "p2", "p3"}


def test_a_cancelled_request_and_another_tenants_are_none(world: World) -> None:
    world.live(guarantee="proved")
    with world.database.write() as session:
        order, window = intake.Order(subject_id="p1"), intake.Windows(cancel_seconds=3600)
        request = intake.accept(session, world.storage.pepper, TENANT, order, window).request.id
    assert people(left(world, None)) - people(left(world)) == {"p1"}
    with world.database.write() as session:
        cancellation.cancel(session, session.get_one(DeletionRequest, request))
    assert people(left(world)) == people(left(world, None))
    world.delete("p2")
    assert people(left(world, "another")) == people(left(world, None))


def test_without_the_record_nothing_is_drawn(world: World, tmp_path: Path) -> None:
    nowhere = world.configured(database_url=f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(Refused, match="record of requests") as refusal:
        left(nowhere)
    assert "where a worker runs" in refusal.value.hint
    with pytest.raises(SettingsError, match="there is no file"):
        left(world.configured(secrets=tmp_path / "none"))


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
    assert people(request.cast.recipe) == people(left(world, None)) - {"p1"}
