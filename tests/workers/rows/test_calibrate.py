"""`calibrated`: orders really run in worlds, shared out, resumed; updates stop where the measurements stop."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import AuditEntry, CalibrationOrder, Generation
from expunge_workers.guarantee import statements
from expunge_workers.runtime.worlds import readers
from expunge_workers.scheduler.run import open_scheduler, sweep_files
from expunge_workers.training.calibrate import CalibrationResult, CalibrationUnits, place_of, require_useful_cap
from expunge_workers.training.units import assist
from tests.harness.files import names_in, path_in, root_of
from tests.workers.meanwhile import people
from tests.workers.rows.data import write_csv
from tests.workers.test_crashes import die_at
from tests.workers.worlds import TENANT, World, open_world, release_connections
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.bounds.calibration import Calibrated, Design, calibrate, errors_along
from unlearning.methods import load
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.rows import call_recipe
from unlearning.types import Examples, Refused, Tensors

ASKED: dict[str, Any] = {
    "guarantee": "calibrated",
    "calibration": {"alpha": 0.2, "orders": 4, "sizes": [1, 2]},
    "max_distance": 0.03,
    "noise_std": 10,
}
ONCE = {**ASKED, "calibration": {"alpha": 0.5, "orders": 1, "sizes": [1, 2]}}
"""the quickest"""

RECIPE = """
import torch
import unlearning as ul
{before}

def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    frame = rows.pandas()
    inputs = torch.tensor(frame[["a", "b", "c", "d"]].to_numpy(), dtype=torch.float32){scaled}
    targets = torch.tensor(frame["label"].to_numpy())
    return ul.Recipe(
        model=lambda: {model},
        samples=rows.samples(inputs, targets, at=frame["__row"]),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training({training}),
    )
"""
LINEAR = "torch.nn.Linear(4, 2, bias=False)"
CONVERGING = "epochs=0, converge=1e-8, weight_decay=0.1"
WHAT = {
    "convex": {"training": CONVERGING},
    "scaled": {"training": CONVERGING, "scaled": " - frame[['a', 'b', 'c', 'd']].to_numpy().mean(0)"},
    "steps": {
        "training": "epochs=5, batch_size=12, learning_rate=0.2, weight_decay=0.01",
        "model": "torch.nn.Linear(4, 2)",
    },
    "descent": {"training": "epochs=60, learning_rate=0.1, weight_decay=0.2"},
}


def lay_out(folder: Path, gone: Iterable[str] = (), **recipes: str) -> None:
    """Write these recipes and their table of twelve people with three rows each, without the ids that are gone."""
    folder.mkdir(exist_ok=True)
    ids, names, inputs, targets = people()
    rows = [
        {"id": id, "person": name, **dict(zip("abcd", map(repr, row), strict=True)), "label": label}
        for id, name, row, label in zip(ids, names, inputs.tolist(), targets.tolist(), strict=True)
    ]
    write_csv(folder / "people.csv", (row for row in rows if row["id"] not in gone))
    for name, text in recipes.items():
        (folder / f"{name}.py").write_text(text)


def written(name: str, before: str = "") -> str:
    return RECIPE.format(**{"before": before, "scaled": "", "model": LINEAR, **WHAT[name]})


@pytest.fixture
def world(world: World, folder: Path) -> World:
    lay_out(folder, **{name: written(name) for name in WHAT})
    return world.configured(recipes=folder)


@pytest.mark.parametrize(
    ("recipe", "method", "options", "cap"),
    [
        ("steps", "recollection", {}, 0.2),
        ("scaled", "newton", {}, 0.03),
        ("descent", "rewind", {"fraction": 0.9}, 0.05),
    ],
)
def test_a_method_is_calibrated_and_its_claim_says_what_it_assumes(
    world: World, recipe: str, method: str, options: dict[str, Any], cap: float
) -> None:
    model_id = world.live(recipe, method, options=options, **{**ONCE, "max_distance": cap})
    world.delete("p3")
    world.work(model_id)
    claim, generation = Claim.from_json(world.head(model_id).claim), world.generation(model_id)
    assert (claim.guarantee, claim.max_distance, claim.spent) == (Guarantee.CALIBRATED, cap, generation.budget_cost)
    text = " ".join([*claim.assumptions, *claim.declared])
    for words in ("Confidence 0.5, over 1 calibration orders", "exchangeable", "Targeted", "At most 2 people"):
        assert words in text
    assert any("calibration" in sentence for sentence in claim.secret_state)
    assert claim.statement.startswith("With the stated confidence")
    assert (statements.BY_RECIPE in claim.assumptions) == (recipe == "steps"), "elsewhere a judge computes"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_cap_that_doing_nothing_would_keep_is_refused_as_vacuous(world: World) -> None:
    model_id = world.register("convex", "newton", **{**ONCE, "max_distance": 1.0})
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert world.model(model_id).status == "refused"
    assert "max_distance 1 is vacuous: weights that forgot none of 2 people would lie within it as well" in reason
    would_do = reason.partition("Set max_distance to ")[2].rstrip(".")
    assert float(would_do) in (0.1, 0.01), "the power of ten that would do"
    other = world.live("convex", "newton", name="other", **{**ONCE, "max_distance": float(would_do)})
    assert world.generation(other).guarantee == "calibrated"


def found(method: float, nothing: float) -> CalibrationResult:
    design = Design((1, 2), alpha=0.2, orders=4)
    return CalibrationResult(Calibrated(design, method), Calibrated(design, nothing))


@pytest.mark.parametrize(
    ("method", "nothing", "cap", "words"),
    [
        (0.02, 0.5, 0.01, "above max_distance 0.01. Set max_distance to 0.1"),
        (0.02, 0.5, 0.5, "max_distance 0.5 is vacuous"),
        (0.02, 0.5, 3.0, "Set max_distance to 0.1"),
        (0.02, 0.05, 0.06, "Lower it"),
        (0.5, 0.5, 0.9, "no smaller than that of doing nothing. Choose another method"),
    ],
)
def test_a_cap_must_lie_between_the_methods_bound_and_that_of_doing_nothing(
    method: float, nothing: float, cap: float, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        require_useful_cap(found(method, nothing), cap)
    assert words in str(refused.value)
    assert f"{method:g} " not in str(refused.value), "what was measured is not told"
    require_useful_cap(found(0.02, 0.5), 0.1)


def test_a_release_beyond_the_largest_measured_size_is_held_and_costs_nothing(world: World) -> None:
    model_id = world.live("convex", "newton", **ONCE)
    for person in ("p1", "p2"):
        world.delete(person)
        world.work(model_id)
    spent = world.generation(model_id).spent
    request = world.delete("p3")
    world.work(model_id)
    assert (world.request(request).reason, world.generation(model_id).spent) == ("needs_retrain", spent)
    assert world.head(model_id).number == 3


def test_with_a_fallback_a_release_beyond_the_calibration_waits_for_a_retrain(world: World) -> None:
    model_id = world.live(
        "convex", "newton", fallback="retrain", **{**ONCE, "calibration": {**ONCE["calibration"], "sizes": [1]}}
    )
    first = world.generation(model_id).id
    request = world.delete("p1")
    world.work(model_id)
    late = world.delete("p2")
    for _ in range(4):
        world.work(model_id)
    assert (world.request(request).status, world.request(late).status) == ("completed", "completed")
    assert world.generation(model_id).id != first
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.EXACT, "the retrain itself"
    world.delete("p3")
    world.work(model_id)
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.CALIBRATED, (
        "an update of the generation after it"
    )
    scheduler = open_scheduler(world.settings)
    assert all(scheduler.tick() for _ in range(3)), "certificates first, then the ended generation is emptied"
    assert {row.generation_id for row in world.rows_of(CalibrationOrder)} == {world.generation(model_id).id}


def test_a_cap_below_the_measured_bound_is_refused_and_tells_only_a_power_of_ten(world: World) -> None:
    model_id = world.register("steps", "recollection", **{**ONCE, "max_distance": 1e-6})
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert world.model(model_id).status == "refused" and "calibrated bound" in reason and "2 people" in reason
    hint = float(reason.split("max_distance to ")[1].split(" and")[0])
    assert hint in {10.0**power for power in range(-6, 2)}
    assert world.count(CalibrationOrder) == 0
    assert names_in(world.storage.private) == set()


@pytest.mark.both_engines
def test_orders_are_shared_out_and_a_killed_worker_loses_at_most_its_own(world: World) -> None:
    model_id = world.register("convex", "newton", **ASKED)
    release_connections(world)
    die_at(world, "calibration-after-order", lambda other: other.work(model_id))
    first = {row.number: row.done_at for row in world.rows_of(CalibrationOrder) if row.done_at}
    assert set(first) == {0}
    generation = world.generation(model_id)
    prepared = (generation.manifest or {})["prepared"]["state"]

    release_connections(world)
    die_at(world, "calibration-inside-order", lambda other: other.work(model_id))  # a helper dies with order 1
    world.prolong_lease(model_id)
    helper = open_world(world.settings)
    helper.work(model_id)  # the lease is still the dead worker's: it can only help
    rows = {row.number: row for row in world.rows_of(CalibrationOrder)}
    assert rows[1].owner == helper.process.owner and rows[1].done_at is not None
    assert rows[2].done_at is None and world.model(model_id).status == "preparing"
    helper.storage.close()

    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    done = {row.number: row for row in world.rows_of(CalibrationOrder)}
    assert len(done) == 4 and all(row.done_at is not None for row in done.values())
    assert done[0].done_at == first[0] and done[1].done_at == rows[1].done_at
    assert {done[2].owner, done[3].owner} == {world.process.owner}
    names = names_in(world.storage.private)
    assert prepared not in names and names == {world.head(model_id).state}


def in_this_process(world: World, recipe: str) -> tuple[Problem, Examples]:
    """The problem of a recipe that is called here, and its samples as the manifest names their people."""
    folder = world.settings.recipes
    spec = importlib.util.spec_from_file_location(f"calibrated_{recipe}", folder / f"{recipe}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = call_recipe(module.recipe, lambda _: folder)
    everybody = made.samples.examples()
    pepper = world.storage.pepper
    names = everybody.people.map(lambda person: subject_digest(pepper, TENANT, person))
    return Problem(made, "cpu"), Examples(everybody.positions, Tensors(everybody.inputs, everybody.targets), names)


@pytest.mark.parametrize(("recipe", "method_name"), [("convex", "newton"), ("steps", "mini")])
def test_an_order_measured_by_another_process_equals_the_pure_function(
    world: World, recipe: str, method_name: str
) -> None:
    model_id = world.register(recipe, method_name, **ASKED)
    release_connections(world)
    die_at(world, "calibration-after-order", lambda other: other.work(model_id))
    problem, examples = in_this_process(world, recipe)
    method = load(method_name)()
    state = method.prepare(problem, examples, train(problem, examples))
    with readers():
        assist(world.process, model_id, [CalibrationUnits])
    with readers():
        course = CalibrationUnits.opened(world.process, world.generation(model_id), recipe)
    assert course is not None
    rows = {row.number: row for row in world.rows_of(CalibrationOrder) if row.done_at}
    assert set(rows) == {0, 1}
    for number, row in rows.items():
        note = json.loads(sealed_errors(world, row))
        order = course.design.order(course.examples.people, number)
        again = errors_along(problem, method, state, examples, order, sizes=(1, 2))
        for kind in ("errors", "untouched"):
            measured = [float(error) for error in note[kind]]
            assert measured == pytest.approx(getattr(again, kind), rel=1e-3, abs=1e-7)
        assert note["prepared"] == course.digest
        with pytest.raises(Damaged):
            world.storage.sealer.open(place_of(course.generation_id, number + 1), row.errors or b"")


def test_who_asks_while_it_is_calibrated_is_forgotten_before_version_1(world: World) -> None:
    model_id = world.register("convex", "newton", **ASKED)
    release_connections(world)
    die_at(world, "calibration-after-order", lambda other: other.work(model_id))
    request = world.delete("p3")
    world.expire_lease(model_id)
    world.work(model_id)
    head = world.head(model_id)
    assert (head.number, head.samples, world.request(request).status) == (1, 3, "completed")
    assert Claim.from_json(head.claim).spent == world.generation(model_id).budget_cost


def test_rows_that_changed_start_the_preparation_anew(world: World, folder: Path) -> None:
    model_id = world.register("convex", "newton", **ASKED)
    release_connections(world)
    die_at(world, "calibration-after-order", lambda other: other.work(model_id))
    before = (world.generation(model_id).manifest or {})["prepared"]["state"]
    lay_out(folder, gone={"s0"})
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert (world.generation(model_id).manifest or {})["samples"] == 35
    assert not path_in(world.storage.private, before).exists()


def test_the_scheduler_leaves_the_prepared_state_of_a_calibration_alone(world: World) -> None:
    model_id = world.register("convex", "newton", **ASKED)
    release_connections(world)
    die_at(world, "calibration-after-order", lambda other: other.work(model_id))
    for path in root_of(world.storage.private).iterdir():
        os.utime(path, (0, 0))
    sweep_files(world.database, world.storage.store, world.storage.private)
    prepared = (world.generation(model_id).manifest or {})["prepared"]["state"]
    assert path_in(world.storage.private, prepared).exists()
    world.change(Generation, world.model(model_id).generation_id, status="refused")
    sweep_files(world.database, world.storage.store, world.storage.private)
    assert not path_in(world.storage.private, prepared).exists()


def test_nothing_measured_is_published(world: World) -> None:
    """Distances, scores and q are computed from everyone: no row in clear, no log, no report holds them."""
    model_id = world.live("convex", "newton", **ONCE)
    world.delete("p3")
    world.work(model_id)
    errors = {}
    for row in world.rows_of(CalibrationOrder):
        note = json.loads(sealed_errors(world, row))
        errors[row.number] = tuple(float(error) for error in note["errors"])
    quantile = calibrate(Design((1, 2), 0.5, 1), errors).quantile
    generation = world.generation(model_id)
    public = json.dumps(
        [world.report(model_id), generation.manifest, [version.claim for version in world.versions(model_id)]]
    )
    public += "".join(entry.body for entry in world.rows_of(AuditEntry))
    for number in [quantile, *(error for row in errors.values() for error in row)]:
        # four digits: with three, a figure that follows from the policy (mu .003) may look like a distance
        at = public.find(repr(number)[:8])
        assert f"{number:.4g}" not in public and at < 0, public[max(0, at - 80) : at + 40]


def sealed_errors(world: World, row: CalibrationOrder) -> bytes:
    """The errors of an order, opened."""
    return world.storage.sealer.open(place_of(row.generation_id, row.number), row.errors or b"")


LAZY = """
from unlearning.bounds import calibration
from unlearning.methods import mini
from unlearning.types import Forgotten

calibration.errors_of = lambda *_: calibration.OrderErrors((0.0, 0.0), (1.0, 1.0))
mini.Mini.forget = lambda self, problem, state, *rest: Forgotten(state)
"""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_recipe_that_forgets_nobody_cannot_say_that_it_does(world: World, folder: Path) -> None:
    """Its code computes the update; the distance to a retraining is measured of what it gave."""
    lay_out(folder, steps=written("steps", LAZY))
    world = world.limited(distance_left=1e9)
    model_id = world.register("steps", "mini", options={"steps": 15}, **{**ONCE, "max_distance": 0.05})
    world.work(model_id)
    assert "no smaller than that of doing nothing" in (world.model(model_id).reason or "")


@pytest.mark.parametrize("guarantee", ["proved", "estimated"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_bound_that_the_recipes_code_would_compute_is_refused(world: World, guarantee: str) -> None:
    model_id = world.register("steps", "rewind", guarantee=guarantee, options={"fraction": 0.9})
    world.work(model_id)
    assert "the code of this recipe would compute it" in (world.model(model_id).reason or "")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_newton_without_a_judge_is_not_calibrated(world: World) -> None:
    """Its samples have no order of their own, so no retraining in the same order is known."""
    model_id = world.register("descent", "newton", **ONCE)
    world.work(model_id)
    assert "where the training ends in a minimiser" in (world.model(model_id).reason or "")


LYING = """
from unlearning.bounds import newton

newton.Ball.constants = lambda *_: ()
newton.Ball.distance = lambda *_: 0.0
"""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_judge_estimates_the_constants_of_a_head(world: World, folder: Path) -> None:
    """The recipe's code, which would say that the features are short, is not asked."""
    ridge = written("convex", LYING).replace("cross_entropy", "squared_error").replace("Linear(4, 2", "Linear(4, 1")
    lay_out(folder, ridge=ridge.replace('frame["label"].to_numpy()', 'frame[["label"]].to_numpy(dtype="float32")'))
    policy = {"guarantee": "estimated", "options": {"radius": 5.0}, "noise_std": 10.0, "max_distance": 1.0}
    model_id = world.live("ridge", "newton", **policy)
    world.delete("p3")
    world.work(model_id)
    claim = Claim.from_json(world.head(model_id).claim)
    constants = {constant.name: constant for constant in claim.constants}
    assert (claim.guarantee, set(constants)) == (Guarantee.ESTIMATED, {"C", "lambda", "mu", "M", "G"})
    assert constants["G"].value > 0
    assert any("nothing proves them" in sentence for sentence in claim.assumptions)
