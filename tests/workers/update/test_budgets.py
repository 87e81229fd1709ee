"""A served model's budgets: what each method used up, by the count that publications keep, beside a count of all."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from expunge_service.api.traffic import Traffic
from expunge_service.api.views.metrics import render
from expunge_service.api.views.models import ModelView, model_page, model_view
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Generation, Membership, Version
from expunge_service.models.budgets import USAGE, Usage, counted
from tests.workers.rows.test_calibrate import ASKED
from tests.workers.worlds import TENANT, World
from unlearning.methods.newton import Newton
from unlearning.methods.safe import Safe

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PUBLISHED = {"step": "published", "rounds": 3}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """A calibration draws its orders over keyed digests of people: the same key, the same orders in every run."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


def trained_on(world: World) -> list[str]:
    """The people of ``held_out`` whom the recipe trains on."""
    members = {row.subject_digest for row in world.rows_of(Membership)}
    names = [f"p{number}" for number in range(24)]
    return [name for name in names if subject_digest(world.storage.pepper, TENANT, name) in members]


def view_of(world: World, model_id: str) -> ModelView:
    with world.database.read() as session:
        view = model_view(session, world.model(model_id))
        assert model_page(session, "default", None, 5)[0].budgets == view.budgets
    return view


def budgets(world: World, model_id: str) -> dict[str, tuple[float, float | None, float | None]]:
    """By kind: used, limit, left, as the API shows them."""
    return {each.kind: (each.used, each.limit, each.left) for each in view_of(world, model_id).budgets}


def scraped(world: World) -> dict[str, dict[str, float]]:
    """The two metrics of budgets: name -> kind -> value."""
    text = render(world.database, world.settings, Traffic(), differs=False).decode()
    values: dict[str, dict[str, float]] = {"expunge_model_budget_used": {}, "expunge_model_budget_limit": {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in values:
                assert set(sample.labels) == {"tenant", "model", "kind"}
                values[sample.name][sample.labels["kind"]] = sample.value
    return values


def require_counted(world: World, model_id: str) -> Usage:
    """Check the count that publications keep against its slow twin, which reads every mark."""
    with world.database.read() as session:
        generation = session.get_one(Generation, world.generation(model_id).id)
        usage = Usage.of(generation)
        assert usage is not None and usage == counted(session, generation)
    return usage


@pytest.mark.both_engines
def test_the_published_step_of_safe_shows_its_rounds_and_the_share_forgotten(world: World) -> None:
    model_id = world.live("held_out", "safe", guarantee="none", options=PUBLISHED, max_accuracy_drop=0.5)
    first_person, second_person, *_ = everybody = trained_on(world)
    assert budgets(world, model_id) == {"rounds": (0, 3, 3), "share": (0, None, None), "accuracy": (0, 0.5, 0.5)}
    for person in (first_person, second_person):
        world.delete(person)
        world.work(model_id)
    first, *_, last = world.versions(model_id)
    assert first.holdout_accuracy is not None and last.holdout_accuracy is not None
    lost = max(0.0, first.holdout_accuracy - last.holdout_accuracy)
    found = budgets(world, model_id)
    assert found["rounds"] == (2, 3, 1)
    assert found["share"] == (pytest.approx(2 / len(everybody)), None, None)
    assert found["accuracy"] == (pytest.approx(lost), 0.5, pytest.approx(0.5 - lost))
    assert require_counted(world, model_id) == Usage(first_version=1, updates=2, samples=2, people=0)
    assert scraped(world) == {
        "expunge_model_budget_used": {
            "rounds": 2,
            "share": pytest.approx(2 / len(everybody)),
            "accuracy": pytest.approx(lost),
        },
        "expunge_model_budget_limit": {"rounds": 3, "accuracy": 0.5},
    }
    assert USAGE not in world.report(model_id), "it is no measurement of the preparation"


@SQLITE
def test_the_last_round_leaves_none_and_a_retrain_begins_anew(world: World) -> None:
    model_id = world.live("held_out", "safe", options=PUBLISHED | {"rounds": 1}, fallback="retrain")
    first_person, second_person, *_ = trained_on(world)
    world.delete(first_person)
    world.work(model_id)
    assert budgets(world, model_id)["rounds"] == (1, 1, 0)
    world.delete(second_person)
    for _ in range(4):
        world.work(model_id)
    assert world.head(model_id).number == 3 and world.head(model_id).method == "retrain"
    found = budgets(world, model_id)
    assert (found["rounds"], found["share"]) == ((0, 1, 1), (0, None, None))
    assert require_counted(world, model_id).first_version == 3


@SQLITE
def test_a_bound_has_epsilon_and_a_method_without_a_last_round_has_no_rounds(world: World) -> None:
    model_id = world.live("convex", "newton", guarantee="proved")
    world.delete("p1")
    world.work(model_id)
    found = budgets(world, model_id)
    generation = world.generation(model_id)
    assert set(found) == {"epsilon", "share", "accuracy"}
    used, limit, left = found["epsilon"]
    assert limit == generation.epsilon and left is not None and 0 < used < 1 and used + left == pytest.approx(1)
    assert world.head(model_id).claim["epsilon"] == pytest.approx(used)
    assert found["accuracy"][1:] == (None, None), "the policy has no max_accuracy_drop"
    assert Newton().most_updates() is None and Safe().most_updates() is None
    assert Safe(step="published", rounds=7).most_updates() == 7


@SQLITE
def test_an_exact_model_has_the_share_that_it_forgot(world: World) -> None:
    model_id = world.live("steps", "retrain")
    world.delete("p1")
    world.work(model_id)
    assert set(budgets(world, model_id)) == {"share", "accuracy"}
    assert budgets(world, model_id)["share"] == (pytest.approx(3 / 36), None, None)


@SQLITE
def test_a_calibration_ends_at_the_people_that_it_measured(world: World) -> None:
    model_id = world.live("convex", "newton", **ASKED)
    assert budgets(world, model_id)["share"] == (0, pytest.approx(2 / 12), pytest.approx(2 / 12))
    for person in ("p1", "p2"):
        world.delete(person)
        world.work(model_id)
    assert budgets(world, model_id)["share"] == (pytest.approx(2 / 12), pytest.approx(2 / 12), 0)
    assert require_counted(world, model_id).people == 2
    request = world.delete("p3")
    world.work(model_id)
    assert world.request(request).reason == "needs_retrain"


@SQLITE
def test_a_generation_of_a_release_before_the_count_is_counted_at_its_next_update(world: World) -> None:
    model_id = world.live("held_out", "safe", guarantee="none", options=PUBLISHED)
    first_person, second_person, *_ = trained_on(world)
    world.delete(first_person)
    world.work(model_id)
    report = {name: value for name, value in (world.generation(model_id).report or {}).items() if name != USAGE}
    world.change(Generation, world.generation(model_id).id, report=report)
    assert budgets(world, model_id) == {}
    world.delete(second_person)
    world.work(model_id)
    assert budgets(world, model_id)["rounds"] == (2, 3, 1)
    assert require_counted(world, model_id).samples == 2


@SQLITE
def test_accuracy_that_was_gained_gives_nothing_up(world: World) -> None:
    model_id = world.live("held_out", "safe", max_accuracy_drop=0.5)
    first_person, *_ = trained_on(world)
    world.delete(first_person)
    world.work(model_id)
    first, last = world.versions(model_id)
    world.change(Version, first.id, holdout_accuracy=0.75)
    world.change(Version, last.id, holdout_accuracy=1.0)
    assert budgets(world, model_id)["accuracy"] == (0, 0.5, 0.5)
    world.change(Version, last.id, holdout_accuracy=0.125)
    assert budgets(world, model_id)["accuracy"] == (0.625, 0.5, 0), "a retrain is advised; updates go on"


@SQLITE
def test_what_is_not_served_has_no_budget(world: World) -> None:
    assert view_of(world, world.register("held_out", "safe")).budgets == []
