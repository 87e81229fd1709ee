"""Claims: what follows from a guarantee, and that no claim says more than its guarantee allows."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from unlearning.accounting.budget import charge_of, limit_of
from unlearning.accounting.certificate import (
    NOT_CLAIMED,
    Claim,
    Constant,
    Guarantee,
    Part,
    Reference,
    epsilon_at,
    together,
)

BUDGET_COST, LIMIT = charge_of(1e-3, 0.05), limit_of(1.0, 1e-5)
BOUNDED = [Guarantee.PROVED, Guarantee.CALIBRATED, Guarantee.ESTIMATED]


def claim(guarantee: Guarantee = Guarantee.PROVED, updates: int = 3, **changes) -> Claim:
    free = guarantee in (Guarantee.EXACT, Guarantee.NONE)
    fields = {
        "method": "recollection",
        "guarantee": guarantee,
        "reference": Reference.RENORMALISED,
        "noise_std": 0.05,
        "max_distance": 1e-3,
        "delta": 1e-5,
        "updates": updates,
        "spent": 0 if free else updates * BUDGET_COST,
        "limit": LIMIT,
        "samples": 14,
        "people": 1,
        "assumptions": ("the loss is strongly convex",),
        "constants": (Constant("lambda", 1e-3, "the recipe's weight decay"),),
        "secret_state": ("other people's recollections",),
    }
    return Claim.of(**(fields | changes))


@pytest.mark.parametrize("guarantee", BOUNDED)
def test_mu_adds_in_squares_and_epsilon_follows_from_the_sum(guarantee: Guarantee) -> None:
    one, four = claim(guarantee, updates=1), claim(guarantee, updates=4)
    assert four.mu == pytest.approx(2 * one.mu)
    assert four.epsilon == epsilon_at(four.mu, 1e-5)
    assert four.updates_left == one.updates_left - 3


def test_an_exact_claim_names_the_mean_over_those_who_stay_whatever_is_asked() -> None:
    asked = {"reference": Reference.FIXED_DENOMINATOR}
    exact = claim(Guarantee.EXACT, **asked)
    assert exact.reference is Reference.RENORMALISED and "renormalised" in exact.statement
    assert claim(**asked).reference is Reference.FIXED_DENOMINATOR


def test_version_one_costs_nothing() -> None:
    first = claim(updates=0)
    assert (first.mu, first.epsilon, first.spent) == (0.0, 0.0, 0)


def test_a_held_draw_is_counted_beside_the_updates() -> None:
    held = claim(updates=3, spent=4 * BUDGET_COST)
    assert held.epsilon > claim(updates=3).epsilon
    assert held.updates_left == claim(updates=3).updates_left - 1


def test_none_claims_nothing_whatever_it_is_given() -> None:
    silent = claim(Guarantee.NONE)
    assert {silent.epsilon, silent.mu, silent.delta, silent.max_distance, silent.limit, silent.updates_left} == {None}
    assert silent.statement.startswith("No claim")


def test_exact_is_free_and_unlimited() -> None:
    exact = claim(Guarantee.EXACT, updates=9)
    assert (exact.max_distance, exact.mu, exact.epsilon, exact.updates_left) == (0.0, 0.0, 0.0, None)


def test_equal_sized_forget_sets_give_equal_claims() -> None:
    # nothing that is not a count, a cap or a setting enters: there is no field for a realised bound
    assert claim(samples=14, people=1) == claim(samples=14, people=1)
    realised = {"bound", "residual", "kappa", "receipt", "iterations"}
    assert not realised & {field.name for field in dataclasses.fields(Claim)}


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_a_claim_survives_json_unchanged(guarantee: Guarantee) -> None:
    made = claim(guarantee)
    assert Claim.from_json(json.loads(json.dumps(made.to_json()))) == made


TOO_MUCH = [
    (Guarantee.NONE, {"epsilon": 1.0}, "guarantee is none and epsilon"),
    (Guarantee.NONE, {"mu": 0.1}, "guarantee is none and mu"),
    (Guarantee.NONE, {"max_distance": 0.1}, "guarantee is none and max_distance"),
    (Guarantee.NONE, {"delta": 1e-5}, "guarantee is none and delta"),
    (Guarantee.NONE, {"limit": 5}, "guarantee is none and limit"),
    (Guarantee.NONE, {"spent": 5}, "nothing is charged"),
    (Guarantee.EXACT, {"max_distance": 1e-9}, "exact and max_distance"),
    (Guarantee.EXACT, {"mu": 0.1}, "exact and mu"),
    (Guarantee.EXACT, {"spent": 1}, "exact and spent"),
    (Guarantee.PROVED, {"max_distance": None}, "max_distance"),
    (Guarantee.PROVED, {"max_distance": 0.0}, "max_distance"),
    (Guarantee.PROVED, {"noise_std": 0.0}, "noise_std"),
    (Guarantee.PROVED, {"noise_std": None}, "noise_std"),
    (Guarantee.PROVED, {"mu": 0.01}, "mu is too small"),
    (Guarantee.PROVED, {"mu": None}, "mu"),
    (Guarantee.PROVED, {"epsilon": 0.05}, "Gaussian curve gives more"),
    (Guarantee.PROVED, {"epsilon": float("nan")}, "epsilon"),
    (Guarantee.PROVED, {"spent": BUDGET_COST}, "3 updates cost"),
    (Guarantee.PROVED, {"delta": 1.0}, "delta"),
    (Guarantee.PROVED, {"delta": 1e-13}, "delta is 1e-13"),
    (Guarantee.PROVED, {"limit": None}, "no limit"),
    (Guarantee.PROVED, {"limit": 3 * BUDGET_COST - 1}, "may not be issued"),
    (Guarantee.PROVED, {"assumptions": ()}, "no assumption"),
    (Guarantee.ESTIMATED, {"constants": ()}, "no constant"),
    (Guarantee.PROVED, {"not_claimed": NOT_CLAIMED[1:]}, "leaves out"),
    (Guarantee.NONE, {"not_claimed": ()}, "leaves out"),
    (Guarantee.PROVED, {"updates": -1}, "updates"),
    (Guarantee.PROVED, {"samples": 1.5}, "samples"),
    (Guarantee.PROVED, {"updates_left": 10**9}, "updates_left"),
]


@pytest.mark.parametrize(("guarantee", "change", "message"), TOO_MUCH)
def test_a_claim_that_says_too_much_is_refused(guarantee: Guarantee, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(claim(guarantee), **change)
    with pytest.raises(ValueError, match=message):
        Claim.from_json(claim(guarantee).to_json() | change)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_an_undeclared_part_is_listed_and_allows_neither_proved_nor_exact(guarantee: Guarantee) -> None:
    hidden = Part("0.weight", "frozen", 36, "a" * 64, public=False)
    for part in (dataclasses.replace(hidden, public=True), hidden):
        if not part.public and guarantee in (Guarantee.PROVED, Guarantee.EXACT):
            with pytest.raises(ValueError, match=r"'0\.weight' is not declared public"):
                claim(guarantee, parts=[part])
        else:
            made = claim(guarantee, parts=[part], checked=["this"], declared=["that"])
            assert Claim.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_claim_from_before_there_were_trials_is_read(guarantee: Guarantee) -> None:
    written = claim(guarantee).to_json()
    del written["tried"]
    assert Claim.from_json(written) == claim(guarantee)
    assert Claim.from_json(claim(guarantee, tried=["this"]).to_json()).tried == ("this",)


def test_an_upgraded_guarantee_is_refused() -> None:
    with pytest.raises(ValueError, match="exact and"):
        dataclasses.replace(claim(Guarantee.PROVED), guarantee=Guarantee.EXACT)
    with pytest.raises(ValueError, match="max_distance"):
        dataclasses.replace(claim(Guarantee.NONE), guarantee=Guarantee.PROVED)


@pytest.mark.parametrize("record", [{"epsilon_total": 1}, {"statement": "x", "certified": True}])
def test_an_unknown_field_in_json_is_refused(record: dict) -> None:
    with pytest.raises(ValueError, match="unknown"):
        Claim.from_json(claim().to_json() | record)


def test_a_constant_without_an_origin_is_refused() -> None:
    with pytest.raises(ValueError, match="no origin"):
        Constant("L", 1.0, " ")


def test_models_sum_per_person_in_mu_squared() -> None:
    one = claim(updates=2)
    mu, epsilon = together([one, one], 1e-5)
    assert mu == pytest.approx(one.mu * 2**0.5)
    assert epsilon == epsilon_at(mu, 1e-5)
    assert one.epsilon < epsilon < 2 * one.epsilon


def test_one_model_without_a_claim_leaves_the_sum_without_a_claim() -> None:
    assert together([claim(), claim(Guarantee.NONE)], 1e-5) is None


def test_bases_are_ordered_and_none_satisfies_only_none() -> None:
    assert [guarantee.rank for guarantee in Guarantee] == [4, 3, 2, 1, 0]
    assert Guarantee.EXACT.satisfies(Guarantee.PROVED) and Guarantee.PROVED.satisfies(Guarantee.PROVED)
    assert not Guarantee.CALIBRATED.satisfies(Guarantee.PROVED)
    assert not any(Guarantee.NONE.satisfies(guarantee) for guarantee in Guarantee if guarantee is not Guarantee.NONE)


@pytest.mark.parametrize("module", ["budget", "certificate", "composition", "policy"])
def test_the_claims_load_the_standard_library_alone(module: str) -> None:
    code = f"import sys, unlearning.accounting.{module}; print({{'torch', 'numpy', 'scipy'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
