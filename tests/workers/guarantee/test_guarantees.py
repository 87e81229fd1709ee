"""Every method is offered with the guarantees it has; what cannot be had is refused with what would work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from expunge_workers.storage import checkpoint_format, private_state
from tests.unlearning.recipes import draw
from tests.unlearning.recipes import recipe as ridge
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.bounds.newton import constrained_of, residual_of
from unlearning.methods import OWN
from unlearning.methods.newton import Newton
from unlearning.methods.rewind import Rewind
from unlearning.model.convex import rounding_floor
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet, Refused, State

LOOSE = {"noise_std": 10.0, "max_distance": 1.0}
FLOATING = {"feature_norm": 4.0, "fraction": 0.9}
BALL = {"radius": 5.0}
SERVED: dict[str, tuple[str, str, dict[str, Any], Guarantee]] = {
    "retrain": ("steps", "retrain", {}, Guarantee.EXACT),
    "late": ("own_training", "late", {"options": {"early_share": 0.4}}, Guarantee.EXACT),
    "shards": ("steps", "shards", {"options": {"shards": 2}}, Guarantee.EXACT),
    "recollection of a trajectory": ("steps", "recollection", {}, Guarantee.NONE),
    "recollection, converged": ("convex", "recollection", {}, Guarantee.PROVED),
    "mini of a trajectory": ("steps", "mini", {}, Guarantee.NONE),
    "mini, converged": ("convex", "mini", {}, Guarantee.PROVED),
    "newton": ("steps", "newton", {}, Guarantee.NONE),
    "newton, converged": ("convex", "newton", {}, Guarantee.PROVED),
    "rewind": ("steps", "rewind", {}, Guarantee.NONE),
    "safe": ("steps", "safe", {"options": {"reach": 0.1}}, Guarantee.NONE),
    "safe, converged": ("convex", "safe", {"options": {"reach": 0.1}}, Guarantee.PROVED),
    "cns": ("steps", "cns", {}, Guarantee.NONE),
    "cns, converged": ("convex", "cns", {}, Guarantee.PROVED),
    "rewind, proved": ("descent", "rewind", {"options": FLOATING, **LOOSE}, Guarantee.PROVED),
    "rewind, estimated": (
        "descent",
        "rewind",
        {"guarantee": "estimated", "options": {"fraction": 0.9}, **LOOSE},
        Guarantee.ESTIMATED,
    ),
    "newton, estimated": (
        "ridge",
        "newton",
        {"guarantee": "estimated", "options": BALL, **LOOSE},
        Guarantee.ESTIMATED,
    ),
    "a proof that is not wanted": ("convex", "newton", {"guarantee": "none"}, Guarantee.NONE),
}
AGAIN = {
    *("recollection, converged", "mini of a trajectory", "newton", "safe, converged", "cns, converged", "rewind"),
    "a proof that is not wanted",
}
"""of these, a second one of the same method; a model in which it is proved is updated in many other tests"""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.drill if each in AGAIN else ()) for each in SERVED]
)
def test_every_method_is_registered_and_carries_out_a_deletion_with_its_honest_guarantee(
    world: World, name: str
) -> None:
    recipe, method, policy, guarantee = SERVED[name]
    model_id = world.live(recipe, method, **policy)
    request = world.delete("p3")
    world.work(model_id)
    task = world.task(request)
    assert (task.status, task.samples, task.method) == ("completed", 3, method), task.reason
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.updates) == (method, guarantee, 1)
    assert claim.secret_state or guarantee is Guarantee.EXACT
    assert world.generation(model_id).spent == (
        world.generation(model_id).budget_cost if claim.limit and claim.max_distance else 0
    )


assert {method for _, method, _, _ in SERVED.values()} == set(OWN)

REFUSED: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "an option of the wrong type": ("convex", "newton", {"options": {"damping": "much"}}, ("damping", "a number")),
    "true is not a number": ("convex", "newton", {"options": {"lissa_depth": True}}, ("lissa_depth", "a whole number")),
    "an option outside its range": ("convex", "newton", {"options": {"damping": -1}}, ("damping", "0 or more")),
    "rewind of a converged model": ("convex", "rewind", {}, ("newton or retrain",)),
    "a proof without a declared norm": ("descent", "rewind", {"guarantee": "proved"}, ("feature_norm",)),
    "a proof that no judge has": (
        "steps",
        "rewind",
        {"guarantee": "proved", "options": FLOATING},
        ("a linear head", "full-batch", "retrain"),
    ),
    "a declared norm that is too small": (
        "descent",
        "rewind",
        {"guarantee": "proved", "options": {**FLOATING, "feature_norm": 0.1}, **LOOSE},
        ("above feature_norm",),
    ),
    "a proof that says nothing": (
        "descent",
        "rewind",
        {"guarantee": "proved", "options": FLOATING, "max_distance": 1e-15},
        ("above max_distance",),
    ),
    "warm is never exact": ("convex", "newton", {"guarantee": "exact"}, ("never exact", "retrain")),
    "estimates for safe": ("convex", "safe", {"guarantee": "estimated"}, ("newton or rewind", "calibrated")),
    "newton without a ball": ("convex", "newton", {"guarantee": "estimated"}, ("radius",)),
    "a vacuous estimate": (
        "convex",
        "newton",
        {"guarantee": "estimated", "options": BALL, "threshold": 1e9, **LOOSE},
        ("vacuous",),
    ),
    "a cap as wide as the ball": (
        "ridge",
        "newton",
        {"guarantee": "estimated", "options": BALL, "threshold": 1e9, "noise_std": 100.0, "max_distance": 10.0},
        ("max_distance 10 is vacuous", "ball of radius 5", "Lower max_distance"),
    ),
    "a cap as wide as any two trainings": (
        "descent",
        "rewind",
        {"guarantee": "estimated", "options": {"fraction": 0.9}, "noise_std": 1e4, "max_distance": 1e3},
        ("max_distance 1000 is vacuous", "any two data sets", "Lower max_distance"),
    ),
    "safe on numbers": ("ridge", "safe", {}, ("one class per sample", "Measured to work on this model: ", "newton (")),
    "a singular Hessian": ("biased", "newton", {"guarantee": "none"}, ("singular", "damping above 0")),
    "a diverging solve": (
        "descent",
        "newton",
        {"options": {"solver": "lissa", "lissa_scale": 1e-3}},
        ("diverges", "lissa_scale above"),
    ),
    "a part that reads the trained weight": ("tied", "newton", {}, ("looks like a linear head", "retrain")),
    "the same, asked to prove nothing": (
        "tied",
        "newton",
        {"guarantee": "none"},
        ("closed form",),
    ),
    "an argument of Python": ("ridge", "newton", {"options": {"gradient_norm": 4.0}}, ("gradient_norm", "from Python")),
    "a head of before": ("steps", "shards", {"options": {"stacked": 0.5}}, ("stacked", "means nothing any more")),
    "the core of before": ("steps", "late", {"options": {"core": 0.5}}, ("core", "Set early_share")),
    "no number among the shares": (
        "steps",
        "late",
        {"options": {"early_share": ["half"]}},
        ("early_share", "a number"),
    ),
    "a field of the policy": ("steps", "rewind", {"options": {"epsilon": 2.0}}, ("epsilon", "field of the policy")),
    "a length without its number": ("steps", "rewind", {"options": {"steps_from": "bound"}}, ("forgotten is missing",)),
    "what follows from the guarantee": (
        "descent",
        "rewind",
        {"options": {**FLOATING, "precision": "float64"}},
        ("precision", "under the guarantee proved"),
    ),
    "an undecayed bias": ("biased_head", "newton", {"guarantee": "proved"}, ("bias", "Decay every parameter")),
    "calibrated by sample": ("convex", "newton", {"guarantee": "calibrated", "granularity": "sample"}, ("subject",)),
    "calibrated, shared samples": ("together", "newton", {"guarantee": "calibrated"}, ("belong to several",)),
    "too few orders for alpha": (
        "convex",
        "newton",
        {"guarantee": "calibrated", "calibration": {"orders": 5}},
        ("at least 19",),
    ),
    "a grid that leaves nobody": (
        "convex",
        "newton",
        {"guarantee": "calibrated", "calibration": {"sizes": [12]}},
        ("Leave people",),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.drill if each == "safe on numbers" else ()) for each in REFUSED]
)
def test_a_wrong_choice_is_refused_at_preparation_with_what_would_work(world: World, name: str) -> None:
    recipe, method, policy, words = REFUSED[name]
    model_id = world.register(recipe, method, **policy)
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused"
    assert model.reason is not None
    for word in words:
        assert word in model.reason


def test_estimated_constants_are_listed_with_their_origin_and_one_digit(world: World) -> None:
    model_id = world.live("ridge", "newton", guarantee="estimated", options=BALL, **LOOSE)
    world.delete("p3")
    world.work(model_id)
    claim = Claim.from_json(world.head(model_id).claim)
    constants = {constant.name: constant for constant in claim.constants}
    assert set(constants) == {"C", "lambda", "mu", "M", "G"}
    assert constants["C"].origin.startswith("option radius")
    for name in ("mu", "M", "G"):
        assert "measured" in constants[name].origin or "left on everyone" in constants[name].origin
        assert constants[name].value == 0 or float(f"{constants[name].value:.0e}") == constants[name].value
    assert any("nothing proves them" in sentence for sentence in claim.assumptions)
    assert "They are not proved" in claim.statement


def test_the_constants_of_an_estimated_rewind_are_listed_with_their_origin(world: World) -> None:
    model_id = world.live("descent", "rewind", guarantee="estimated", options={"fraction": 0.9}, **LOOSE)
    world.delete("p3")
    world.work(model_id)
    claim = Claim.from_json(world.head(model_id).claim)
    constants = {constant.name: constant for constant in claim.constants}
    assert set(constants) == {"L", "G"}, "what the bound is computed from; steps and rates are the recipe's"
    assert constants["L"].origin.startswith("closed form of a linear head at the longest features of a sample")
    assert "longest data gradient of a sample" in constants["G"].origin
    assert "a lower bound of the truth" in constants["G"].origin
    longest = world.recipe("descent").samples.tensors()[0].double().square().sum(dim=1).max()
    assert constants["L"].value >= 0.5 * float(longest), "the theorem asks for every sample's"
    for name in ("L", "G"):
        assert float(f"{constants[name].value:.0e}") == constants[name].value > 0
    assert any("nothing proves them" in sentence for sentence in claim.assumptions)


@pytest.mark.parametrize(
    ("recipe", "method", "options"), [("ridge", "newton", BALL), ("descent", "rewind", {"fraction": 0.9})]
)
def test_an_estimated_bound_is_computed_at_each_update(
    world: World, recipe: str, method: str, options: dict[str, Any]
) -> None:
    model_id = world.live(recipe, method, guarantee="estimated", options=options, **LOOSE)
    assert bound_of(world, model_id) == 0
    world.delete("p3")
    world.work(model_id)
    assert 0 < bound_of(world, model_id) <= LOOSE["max_distance"]


def bound_of(world: World, model_id: str) -> float:
    """The bound that is sealed with the current version."""
    version, storage = world.head(model_id), world.storage
    sealed = storage.sealer.open(private_state.place_of(version), storage.private.read(version.state))
    return float(checkpoint_format.decode_state(sealed)[1]["bound"])


def test_labels_that_do_not_sum_to_one_are_served_at_the_minimiser_of_their_own_loss(world: World) -> None:
    """Against Newton's method on the loss as autograd sees it, written out here."""
    model_id = world.live("multi_hot", "newton", guarantee="proved")
    world.delete("p3")
    world.work(model_id)
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.PROVED
    secret = world.state(world.head(model_id)).weights
    recipe = world.recipe("multi_hot")
    kept = torch.tensor([people != ("p3",) for people in recipe.samples.people])
    inputs, labels = (part[kept].double() for part in recipe.samples.tensors())

    def objective(w: torch.Tensor) -> torch.Tensor:
        losses = torch.nn.functional.cross_entropy(inputs @ w.reshape(3, 4).T, labels, reduction="none")
        return losses.mean() + 0.05 * w.dot(w)

    w = torch.zeros(12, dtype=torch.float64)
    for _ in range(30):
        gradient = torch.autograd.functional.jacobian(objective, w)
        w = w - torch.linalg.solve(torch.autograd.functional.hessian(objective, w), gradient)
    assert float((secret - w).norm()) <= 1e-5


def test_an_update_that_takes_no_step_has_the_whole_gradient_as_its_residual() -> None:
    """Ridge with all constants true: a bound without that residual was beaten 5,000 times."""
    x, y = draw(40, 3), draw(40, 1, seed=1)
    written = ridge(lambda: torch.nn.Linear(3, 1, bias=False), x, y, "squared_error", weight_decay=0.1, converge=1e-10)
    problem, examples = Problem(written).double(), written.samples.examples()
    w = train(problem, examples).weights
    gone = ForgetSet(frozenset({"p3"}), (3, 10, 17, 24, 31, 38))
    retain = examples.without(torch.tensor(gone.positions))
    released = Newton(gradient_norm=10.0).forget(problem, State(w), gone, retain, torch.Generator())
    assert released.evidence["steps"] == [] and torch.equal(released.state.weights, w)
    kept = retain.inputs
    smallest = float(torch.linalg.eigvalsh(kept.T @ kept / len(kept))[0]) + 0.1
    constants = {"C": 5.0, "lambda": 0.0, "mu": smallest, "M": 0.0, "G": 1e-10}
    distance = float((w - train(problem, retain).weights).norm())
    assert 1e-3 < distance <= constrained_of(constants, residual_of(released.evidence)).distance() < 10 * distance


def test_a_step_left_out_that_would_not_fit_is_refused() -> None:
    x, y = draw(40, 3), draw(40, 1, seed=1)
    written = ridge(lambda: torch.nn.Linear(3, 1, bias=False), x, y, "squared_error", weight_decay=0.1, converge=1e-10)
    problem, examples = Problem(written).double(), written.samples.examples()
    state = State(train(problem, examples).weights)
    bound, early = (Newton(radius=5.0, gradient_norm=each).bound(Guarantee.ESTIMATED) for each in (None, 4.0))
    assert bound is not None and early is not None
    constants = {each.name: each.value for each in bound.constants(problem, examples, state)}
    assert bound.require_useful(problem, examples, state, 1.0, constants)
    with pytest.raises(Refused, match="above max_distance"):
        early.require_useful(problem, examples, state, 1.0, constants)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_what_follows_from_the_guarantee_is_set_by_it(guarantee: Guarantee) -> None:
    recipe = ridge(lambda: torch.nn.Linear(3, 1), draw(4, 3), draw(4, 1), "squared_error")
    proved = guarantee is Guarantee.PROVED
    assert Newton().under(guarantee, recipe) == Newton(residual=0.1 if proved else 1e-6)
    assert Rewind().under(guarantee, recipe) == Rewind(precision="float64" if proved else "training")


def test_registration_refuses_where_rounding_takes_more_than_a_third_of_the_cap(world: World) -> None:
    recipe = world.recipe("convex")
    problem, examples = Problem(recipe).double(), recipe.samples.examples()
    floor = rounding_floor(problem, train(problem, examples).weights, examples)
    refused = world.register("convex", "newton", name="tight", max_distance=2.5 * floor, noise_std=1e3 * floor)
    world.work(refused)
    assert "Rounding alone takes more than a third" in (world.model(refused).reason or "")
    world.live("convex", "newton", name="roomy", max_distance=30 * floor, noise_std=3e4 * floor)


def test_a_proved_rewind_lies_within_what_was_charged(world: World) -> None:
    """Against a float64 retraining by plain gradient descent, written out here."""
    model_id = world.live("descent", "rewind", options=FLOATING, **LOOSE)
    report = world.report(model_id)
    assert report["bound_of_one_sample"] <= LOOSE["max_distance"] and report["samples_within_cap"] >= 3
    world.delete("p3")
    world.work(model_id)
    secret = world.state(world.head(model_id)).weights
    assert secret.dtype == torch.float64
    recipe = world.recipe("descent")
    kept = torch.tensor([people != ("p3",) for people in recipe.samples.people])
    inputs, targets = (part[kept] for part in recipe.samples.tensors())
    w = Problem(recipe).initial().double().reshape(2, 4)
    for _ in range(60):
        chances = torch.softmax(inputs.double() @ w.T, dim=1) - torch.nn.functional.one_hot(targets, 2)
        w = w - 0.1 * (chances.T @ inputs.double() / len(inputs) + 0.2 * w)
    assert 0 < float((secret - w.reshape(-1)).norm()) <= bound_of(world, model_id) <= LOOSE["max_distance"]


def test_more_than_the_cap_covers_is_held_and_costs_nothing(world: World) -> None:
    tight = {**LOOSE, "options": FLOATING}
    roomy = world.live("descent", "rewind", name="roomy", **tight)
    one = world.report(roomy)["bound_of_one_sample"]
    model_id = world.live("descent", "rewind", name="tight", **{**tight, "max_distance": 3.5 * one})
    assert world.report(model_id)["samples_within_cap"] == 3
    world.delete("p3", models=("tight",))
    world.work(model_id)
    assert world.head(model_id).number == 2
    spent = world.generation(model_id).spent
    request = world.delete("p4", models=("tight",))
    world.work(model_id)
    assert (world.request(request).reason, world.generation(model_id).spent) == ("needs_retrain", spent)


def test_a_rewind_is_charged_like_any_release_and_does_not_fit_an_exhausted_budget(world: World) -> None:
    """A rewind keeps the budget: the generation stays exhausted, and who waits is held."""
    policy = {"noise_std": 32.0, "max_distance": 4.0, "epsilon": 1.0, "fallback": "hold", "options": FLOATING}
    model_id = world.live("descent", "rewind", **policy)
    budget_cost, limit = world.generation(model_id).budget_cost, world.generation(model_id).budget
    assert limit is not None and limit // budget_cost == 4
    for person in range(4):
        world.delete(f"p{person}")
        world.work(model_id)
    request = world.delete("p5")
    world.work(model_id)
    assert (world.request(request).reason, world.generation(model_id).spent) == ("budget_exhausted", 4 * budget_cost)


def test_the_dry_run_says_what_noise_costs_and_what_it_buys(world: World) -> None:
    model_id = world.live("convex", "newton", noise_std=0.01, max_distance=1e-5)
    rows = world.report(model_id)["dry_run"]
    grid = {(row["noise_std"], row["max_distance"]): row for row in rows}
    assert len(grid) == 9
    rows = [row for row in rows if row["max_distance"] == 1e-5]
    assert [row["noise_std"] for row in rows] == pytest.approx([0.001, 0.01, 0.1])
    updates = [row["updates"] for row in rows]
    assert updates[0] == grid[0.01, 1e-4]["updates"], "ten times the cap buys what a tenth of noise_std does"
    generation = world.generation(model_id)
    assert generation.budget is not None and updates[1] == generation.budget // generation.budget_cost
    assert updates[0] < updates[1] < updates[2]
    assert all(0 <= row["accuracy"] <= 1 for row in rows) and rows[0]["accuracy"] > 0.7


def test_the_dry_run_shows_an_accuracy_that_noise_destroys(world: World) -> None:
    model_id = world.live("convex", "newton", noise_std=30.0, max_distance=1e-2)
    rows = world.report(model_id)["dry_run"]
    quiet, _, loud = (row for row in rows if row["max_distance"] == 1e-2)
    assert loud["updates"] > quiet["updates"]
    assert loud["accuracy"] < 0.9
