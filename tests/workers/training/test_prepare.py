"""Preparation: version 1 holds nobody who asked to be forgotten before it; a refusal leaves only its reason."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import select

from expunge_service.infra.tables import AuditEntry, BudgetEntry, Membership, Removal, StoredVector
from expunge_service.queue import Preparation, Stale
from expunge_service.requests.reasons import Reason
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.storage.key_store import HolderKey
from expunge_workers.training import prepare
from tests.harness.files import names_in
from tests.workers.update.test_switch import while_drafting
from tests.workers.worlds import World

pytestmark = pytest.mark.usefixtures("reading")


def keys_in(world: World) -> int:
    with world.storage.keys._database.read() as session:
        return len(session.scalars(select(HolderKey.id)).all())


def test_a_model_goes_live_with_its_manifest_and_one_sealed_vector_a_person(world: World) -> None:
    model_id = world.live()
    generation, head = world.generation(model_id), world.head(model_id)
    assert (head.number, head.parent_id, head.samples) == (1, None, 0)
    assert (generation.status, generation.progress, generation.phase, generation.spent) == ("live", 1.0, None, 0)
    assert generation.manifest is not None and generation.report is not None
    assert {name: generation.manifest[name] for name in ("samples", "people", "dimension")} == {
        "samples": 36,
        "people": 12,
        "dimension": 8,
    }
    assert world.report(model_id)["distance_left"] < 0.7
    assert (world.count(Membership), world.count(StoredVector), keys_in(world)) == (36, 12, 12)


def test_people_who_asked_before_training_are_never_in_the_model(world: World) -> None:
    model_id = world.register()
    known, unknown = world.delete("p3"), world.delete("nobody")
    world.work(model_id)
    assert [version.number for version in world.versions(model_id)] == [1]
    assert (world.task(known).samples, world.task(known).reason) == (3, "left_out")
    assert (world.task(unknown).samples, world.task(unknown).reason) == (0, "no_match")
    assert (
        Reason.NO_MATCH.says((world.task(unknown).facts or {})["no_match"]) == "This model holds no data under this id."
    )
    assert {world.request(request).status for request in (known, unknown)} == {"completed"}
    assert world.task(known).version_id == world.head(model_id).id
    assert (world.count(Membership), world.generation(model_id).spent) == (33, 0)


def test_a_suppression_outlives_its_model(world: World) -> None:
    """A person who was forgotten is not in a model that is registered later."""
    first = world.live("means", "retrain", name="first")
    world.delete("p3")
    world.work(first)
    second = world.live("means", "retrain", name="second", leave_out_forgotten=True)
    generation = world.generation(second)
    assert generation.manifest is not None
    assert (generation.manifest["samples"], generation.manifest["left_out"]) == (33, 3)


def test_a_request_for_other_models_leaves_nobody_out(world: World) -> None:
    world.live(name="first")
    world.delete("p3", models=("first",))
    second = world.live(name="second")
    assert (world.generation(second).manifest or {})["left_out"] == 0


def test_people_who_ask_during_training_are_forgotten_before_version_1(world: World) -> None:
    model_id = world.register()
    job = world.claim(model_id)
    assert isinstance(job, Preparation)
    watch = Stopwatch(world.pulse())
    ready = prepare.make_ready(world.process, job, watch)
    request = world.delete("p3")
    assert prepare.bring_into_service(world.process, job, ready, watch)
    head, generation = world.head(model_id), world.generation(model_id)
    assert (head.number, head.samples, head.people) == (1, 3, 1)
    assert (world.task(request).status, world.task(request).samples) == ("completed", 3)
    assert (world.count(Removal), world.count(StoredVector)) == (3, 11)
    assert generation.spent == generation.budget_cost > 0
    world.delete("p4")
    world.work(model_id)
    assert world.head(model_id).claim["updates"] == 2, "version 1 forgot somebody too"


def test_people_who_ask_at_the_last_moment_are_forgotten_before_version_1(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked after the draft was computed: publishing sees it under the model's lock, and starts over."""
    model_id = world.register()
    job = world.claim(model_id)
    assert isinstance(job, Preparation)
    watch = Stopwatch(world.pulse())
    ready = prepare.make_ready(world.process, job, watch)
    first = world.delete("p3")
    late: list[str] = []
    while_drafting(monkeypatch, lambda: late.append(world.delete("p4")))
    assert prepare.bring_into_service(world.process, job, ready, watch)
    assert {world.request(request).status for request in (first, late[0])} == {"completed"}
    assert (world.head(model_id).samples, world.head(model_id).people) == (6, 2)
    assert world.generation(model_id).spent == world.generation(model_id).budget_cost
    assert len(names_in(world.storage.store)) == 1, "the draft that was never published is gone"


def test_a_legal_hold_during_training_keeps_its_person_and_holds_the_request(world: World) -> None:
    model_id = world.register()
    job = world.claim(model_id)
    assert isinstance(job, Preparation)
    watch = Stopwatch(world.pulse())
    ready = prepare.make_ready(world.process, job, watch)
    world.hold("p3")
    request = world.delete("p3")
    assert prepare.bring_into_service(world.process, job, ready, watch)
    assert (world.request(request).reason, world.head(model_id).samples) == ("legal_hold", 0)


@pytest.mark.parametrize(
    ("recipe", "body", "reason"),
    [
        ("broken", "    raise KeyError('canary-person')\n", "raised KeyError at line 3 of broken.py"),
        ("other", "    return 3\n", "returned a int"),
    ],
)
def test_a_recipe_that_fails_is_refused_and_nothing_is_half_done(
    world: World, recipe: str, body: str, reason: str
) -> None:
    source = 'import unlearning as ul\ndef recipe(rows: ul.Rows = ul.table("people.csv", person="person")):\n'
    (world.settings.recipes / f"{recipe}.py").write_text(source + body)
    model_id = world.register(recipe)
    request = world.delete("p3")
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused"
    assert model.reason is not None and reason in model.reason
    assert "canary" not in "".join(entry.body for entry in world.rows_of(AuditEntry))
    assert (world.request(request).status, world.task(request).reason) == ("completed", "not_published")
    assert (world.count(Membership), world.count(StoredVector), keys_in(world)) == (0, 0, 0)
    hint = (world.generation(model_id).report or {})["refused"]["hint"]
    assert world.generation(model_id).report == {
        "refused": {"what": model.reason.removesuffix(f" {hint}"), "hint": hint}
    }


@pytest.mark.parametrize(
    ("recipe", "method", "policy", "reason"),
    [
        ("missing", "recollection", {}, "There is no recipe"),
        ("../../etc/passwd", "recollection", {}, "name is not allowed"),
        ("convex", "recollection", {"max_distance": 1e-17, "guarantee": "proved"}, "Rounding alone"),
        ("convex", "recollection", {"threshold": 1e-9}, "distance_left"),
        ("convex", "recollection", {"options": {"nonsense": 1}}, "has no option 'nonsense'"),
        ("steps", "recollection", {"guarantee": "proved"}, "Without that code it is computed for a"),
        ("steps", "recollection", {"guarantee": "exact"}, "recollection is never exact"),
        ("steps", "recollection", {"reference": "renormalised"}, "fixed-denominator"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_with_its_reason(
    world: World, recipe: str, method: str, policy: dict[str, object], reason: str
) -> None:
    model_id = world.register(recipe, method, **policy)
    world.work(model_id)
    model = world.model(model_id)
    assert (model.status, model.current_id) == ("refused", None)
    assert model.reason is not None and reason in model.reason
    assert (world.count(Membership), world.count(StoredVector), keys_in(world)) == (0, 0, 0)
    assert world.kinds()[-1] == "preparation.refused"


def test_an_attempt_that_died_is_started_clean(world: World) -> None:
    model_id = world.register()
    job = world.claim(model_id)
    assert isinstance(job, Preparation)
    prepare.make_ready(world.process, job, Stopwatch(world.pulse()))
    assert (world.count(Membership), keys_in(world)) == (36, 12)
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live"
    assert (world.count(Membership), world.count(StoredVector), keys_in(world)) == (36, 12, 12)
    assert world.report(model_id)["attempts"] == 2


@pytest.mark.both_engines
def test_a_late_preparation_writes_nothing_over_its_successor(world: World) -> None:
    model_id = world.register()
    late = world.claim(model_id)
    assert isinstance(late, Preparation)
    world.expire_lease(model_id)
    world.work(model_id)
    before = (world.footprint(), world.count(Membership), keys_in(world))
    with pytest.raises(Stale):
        prepare.prepare(world.process, late, Stopwatch(world.pulse()))
    assert (world.footprint(), world.count(Membership), keys_in(world)) == before


def test_three_attempts_without_a_result_are_refused(world: World) -> None:
    model_id = world.register()
    request = world.delete("p3")
    for _ in range(3):
        assert world.claim(model_id) is not None
        world.expire_lease(model_id)
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused" and model.reason is not None and model.reason.startswith("3 attempts ended")
    assert world.request(request).status == "completed"


def test_everyone_asking_before_training_is_refused(world: World) -> None:
    model_id = world.register()
    for index in range(12):
        world.delete(f"p{index}")
    world.work(model_id)
    assert "Everyone" in (world.model(model_id).reason or "")


def test_terms_are_fixed_at_registration(world: World) -> None:
    model_id = world.live(guarantee="proved", noise_std=0.02, max_distance=2e-5)
    before = world.generation(model_id)
    for person in ("p1", "p2"):
        world.delete(person)
        world.work(model_id)
    after = world.generation(model_id)
    for name in ("guarantee", "noise_std", "max_distance", "budget_cost", "budget", "epsilon", "delta"):
        assert getattr(before, name) == getattr(after, name)
    assert (after.noise_std, after.max_distance, after.spent) == (0.02, 2e-5, 2 * after.budget_cost)
    assert {entry.budget_cost for entry in world.rows_of(BudgetEntry)} == {after.budget_cost}


def test_samples_added_to_the_recipe_later_are_ignored(world: World) -> None:
    rows = world.rows()
    world.drop_rows("s30", "s31", "s32")
    model_id = world.live()
    world.write_rows(rows)
    request = world.delete("p3")
    world.work(model_id)
    assert world.request(request).status == "completed"
    added = world.delete("p10")
    world.work(model_id)
    assert world.request(added).reason == "no_match"


@pytest.mark.drill  # test_probe.py shows it of a smaller network
def test_recollection_is_refused_where_it_does_harm_with_the_measurement_and_what_works(world: World) -> None:
    model_id = world.register("unstable", "recollection")
    world.work(model_id)
    model = world.model(model_id)
    assert (model.status, model.current_id) == ("refused", None)
    found = re.search(r"are ([\d.e+]+) times as far from retraining as before", model.reason or "")
    assert found is not None and float(found[1]) > 0.7
    assert str(model.reason).endswith("measures which other methods work on this model.")
    assert (world.count(Membership), world.count(StoredVector), keys_in(world)) == (0, 0, 0)


@pytest.mark.drill
def test_recollection_is_accepted_at_a_stable_learning_rate_on_the_same_network(world: World) -> None:
    assert world.report(world.live("stable", "recollection"))["distance_left"] < 0.7


def test_a_refusal_names_what_measures_the_other_methods(world: World) -> None:
    model_id = world.register("convex", "mini", options={"steps": 1})
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert "After mini the weights are 0." in reason and reason.endswith(
        "measures which other methods work on this model."
    )
