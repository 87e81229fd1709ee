"""Claims: what follows from a basis, and that no claim says more than its basis allows."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from unlearning.accounting.budget import charge_of, limit_of
from unlearning.accounting.certificate import NOT_CLAIMED, Basis, Claim, Constant, Part, Reference, epsilon_at, together

CHARGE, LIMIT = charge_of(1e-3, 0.05), limit_of(1.0, 1e-5)
BOUNDED = [Basis.PROVED, Basis.CALIBRATED, Basis.ESTIMATED]


def claim(basis: Basis = Basis.PROVED, releases: int = 3, **changes) -> Claim:
    free = basis in (Basis.EXACT, Basis.NONE)
    fields = {
        "method": "recollection",
        "basis": basis,
        "reference": Reference.RENORMALISED,
        "sigma": 0.05,
        "delta_cap": 1e-3,
        "delta": 1e-5,
        "releases": releases,
        "spent": 0 if free else releases * CHARGE,
        "limit": LIMIT,
        "samples": 14,
        "people": 1,
        "assumptions": ("the loss is strongly convex",),
        "constants": (Constant("lambda", 1e-3, "the recipe's weight decay"),),
        "secret_state": ("other people's recollections",),
    }
    return Claim.of(**(fields | changes))


@pytest.mark.parametrize("basis", BOUNDED)
def test_mu_adds_in_squares_and_epsilon_follows_from_the_sum(basis: Basis) -> None:
    one, four = claim(basis, releases=1), claim(basis, releases=4)
    assert four.mu == pytest.approx(2 * one.mu)
    assert four.epsilon == epsilon_at(four.mu, 1e-5)
    assert four.releases_left == one.releases_left - 3


def test_version_one_costs_nothing() -> None:
    first = claim(releases=0)
    assert (first.mu, first.epsilon, first.spent) == (0.0, 0.0, 0)


def test_a_held_draw_is_counted_beside_the_releases() -> None:
    held = claim(releases=3, spent=4 * CHARGE)
    assert held.epsilon > claim(releases=3).epsilon
    assert held.releases_left == claim(releases=3).releases_left - 1


def test_none_claims_nothing_whatever_it_is_given() -> None:
    silent = claim(Basis.NONE)
    assert {silent.epsilon, silent.mu, silent.delta, silent.delta_cap, silent.limit, silent.releases_left} == {None}
    assert silent.statement.startswith("No claim")


def test_exact_is_free_and_unlimited() -> None:
    exact = claim(Basis.EXACT, releases=9)
    assert (exact.delta_cap, exact.mu, exact.epsilon, exact.releases_left) == (0.0, 0.0, 0.0, None)


def test_equal_sized_forget_sets_give_equal_claims() -> None:
    # nothing that is not a count, a cap or a setting enters: there is no field for a realised bound
    assert claim(samples=14, people=1) == claim(samples=14, people=1)
    realised = {"bound", "residual", "kappa", "receipt", "iterations"}
    assert not realised & {field.name for field in dataclasses.fields(Claim)}


@pytest.mark.parametrize("basis", list(Basis))
def test_a_claim_survives_json_unchanged(basis: Basis) -> None:
    made = claim(basis)
    assert Claim.from_json(json.loads(json.dumps(made.to_json()))) == made


TOO_MUCH = [
    (Basis.NONE, {"epsilon": 1.0}, "basis is none and epsilon"),
    (Basis.NONE, {"mu": 0.1}, "basis is none and mu"),
    (Basis.NONE, {"delta_cap": 0.1}, "basis is none and delta_cap"),
    (Basis.NONE, {"delta": 1e-5}, "basis is none and delta"),
    (Basis.NONE, {"limit": 5}, "basis is none and limit"),
    (Basis.NONE, {"spent": 5}, "nothing is charged"),
    (Basis.EXACT, {"delta_cap": 1e-9}, "exact and delta_cap"),
    (Basis.EXACT, {"mu": 0.1}, "exact and mu"),
    (Basis.EXACT, {"spent": 1}, "exact and spent"),
    (Basis.PROVED, {"delta_cap": None}, "delta_cap"),
    (Basis.PROVED, {"delta_cap": 0.0}, "delta_cap"),
    (Basis.PROVED, {"sigma": 0.0}, "sigma"),
    (Basis.PROVED, {"sigma": None}, "sigma"),
    (Basis.PROVED, {"mu": 0.01}, "mu is too small"),
    (Basis.PROVED, {"mu": None}, "mu"),
    (Basis.PROVED, {"epsilon": 0.05}, "Gaussian curve gives more"),
    (Basis.PROVED, {"epsilon": float("nan")}, "epsilon"),
    (Basis.PROVED, {"spent": CHARGE}, "3 releases cost"),
    (Basis.PROVED, {"delta": 1.0}, "delta"),
    (Basis.PROVED, {"delta": 1e-13}, "delta is 1e-13"),
    (Basis.PROVED, {"limit": None}, "no limit"),
    (Basis.PROVED, {"limit": 3 * CHARGE - 1}, "may not be issued"),
    (Basis.PROVED, {"assumptions": ()}, "no assumption"),
    (Basis.ESTIMATED, {"constants": ()}, "no constant"),
    (Basis.PROVED, {"not_claimed": NOT_CLAIMED[1:]}, "leaves out"),
    (Basis.NONE, {"not_claimed": ()}, "leaves out"),
    (Basis.PROVED, {"releases": -1}, "releases"),
    (Basis.PROVED, {"samples": 1.5}, "samples"),
    (Basis.PROVED, {"releases_left": 10**9}, "releases_left"),
]


@pytest.mark.parametrize(("basis", "change", "message"), TOO_MUCH)
def test_a_claim_that_says_too_much_is_refused(basis: Basis, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(claim(basis), **change)
    with pytest.raises(ValueError, match=message):
        Claim.from_json(claim(basis).to_json() | change)


@pytest.mark.parametrize("basis", Basis)
def test_an_undeclared_part_is_listed_and_allows_neither_proved_nor_exact(basis: Basis) -> None:
    hidden = Part("0.weight", "frozen", 36, "a" * 64, public=False)
    for part in (dataclasses.replace(hidden, public=True), hidden):
        if not part.public and basis in (Basis.PROVED, Basis.EXACT):
            with pytest.raises(ValueError, match=r"'0\.weight' is not declared public"):
                claim(basis, parts=[part])
        else:
            made = claim(basis, parts=[part], checked=["this"], declared=["that"])
            assert Claim.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_an_upgraded_basis_is_refused() -> None:
    with pytest.raises(ValueError, match="exact and"):
        dataclasses.replace(claim(Basis.PROVED), basis=Basis.EXACT)
    with pytest.raises(ValueError, match="delta_cap"):
        dataclasses.replace(claim(Basis.NONE), basis=Basis.PROVED)


@pytest.mark.parametrize("record", [{"epsilon_total": 1}, {"statement": "x", "certified": True}])
def test_an_unknown_field_in_json_is_refused(record: dict) -> None:
    with pytest.raises(ValueError, match="unknown"):
        Claim.from_json(claim().to_json() | record)


def test_a_constant_without_an_origin_is_refused() -> None:
    with pytest.raises(ValueError, match="no origin"):
        Constant("L", 1.0, " ")


def test_models_sum_per_person_in_mu_squared() -> None:
    one = claim(releases=2)
    mu, epsilon = together([one, one], 1e-5)
    assert mu == pytest.approx(one.mu * 2**0.5)
    assert epsilon == epsilon_at(mu, 1e-5)
    assert one.epsilon < epsilon < 2 * one.epsilon


def test_one_model_without_a_claim_leaves_the_sum_without_a_claim() -> None:
    assert together([claim(), claim(Basis.NONE)], 1e-5) is None


def test_bases_are_ordered_and_none_satisfies_only_none() -> None:
    assert [basis.rank for basis in Basis] == [4, 3, 2, 1, 0]
    assert Basis.EXACT.satisfies(Basis.PROVED) and Basis.PROVED.satisfies(Basis.PROVED)
    assert not Basis.CALIBRATED.satisfies(Basis.PROVED)
    assert not any(Basis.NONE.satisfies(basis) for basis in Basis if basis is not Basis.NONE)


@pytest.mark.parametrize("module", ["gaussian", "budget", "certificate", "composition", "policy"])
def test_the_claims_load_the_standard_library_alone(module: str) -> None:
    code = f"import sys, unlearning.{module}; print({{'torch', 'numpy', 'scipy'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
