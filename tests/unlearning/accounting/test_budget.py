"""The accountant: integers, rounding on the safe side, and nothing ever beyond the limit."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unlearning.accounting.budget import (
    UNITS,
    Budget,
    Overspent,
    charge_of,
    epsilon_of,
    limit_of,
    mu_at,
    mu_of,
    updates_left,
    would_overspend,
)

sizes = st.floats(1e-9, 1e3)


@given(sizes, sizes)
def test_a_charge_is_rounded_up_by_less_than_one_unit(max_distance: float, noise_std: float) -> None:
    exact = (Fraction(max_distance) / Fraction(noise_std)) ** 2 * UNITS
    if exact > 2**63 - 1:
        with pytest.raises(ValueError, match="Raise noise_std"):
            charge_of(max_distance, noise_std)
        return
    assert 0 <= charge_of(max_distance, noise_std) - exact < 1
    assert charge_of(max_distance, noise_std) >= 1


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-3, 100), st.floats(1e-12, 0.1))
def test_a_limit_is_rounded_down_by_less_than_one_unit(epsilon: float, delta: float) -> None:
    exact = Fraction(mu_at(epsilon, delta)) ** 2 * UNITS
    assert 0 <= exact - limit_of(epsilon, delta) < 1


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 20), st.floats(1e-9, 1e-2), st.floats(1e-4, 1.0), st.floats(1e-6, 1e-2))
def test_spending_everything_never_exceeds_the_policys_epsilon(
    epsilon: float, delta: float, noise_std: float, max_distance: float
) -> None:
    limit, budget_cost = limit_of(epsilon, delta), charge_of(max_distance, noise_std)
    left = updates_left(0, limit, budget_cost)
    assert epsilon_of(left * budget_cost, delta) <= epsilon
    assert would_overspend(left * budget_cost, limit, budget_cost)


@given(st.integers(0, 2**62))
def test_mu_of_what_is_spent_is_never_too_small(spent: int) -> None:
    assert Fraction(mu_of(spent)) ** 2 * UNITS >= spent
    assert Fraction(mu_of(spent)) ** 2 * UNITS <= spent * (1 + Fraction(1, 10**14))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**4))
def test_updates_left_is_the_number_that_fits_exactly(spent: int, limit: int, budget_cost: int) -> None:
    left = updates_left(spent, limit, budget_cost)
    assert left == 0 or not would_overspend(spent + (left - 1) * budget_cost, limit, budget_cost)
    assert would_overspend(spent + left * budget_cost, limit, budget_cost)


def test_more_than_the_limit_is_no_budget() -> None:
    with pytest.raises(Overspent, match="107 units are spent of a limit of 100"):
        Budget(spent=107, limit=100, budget_cost=7)


def test_free_updates_and_no_limit_are_unlimited() -> None:
    assert Budget(spent=0, limit=100, budget_cost=0).updates_left is None
    assert Budget(spent=0, limit=None, budget_cost=0).updates_left is None
    assert not Budget(spent=0, limit=None, budget_cost=0).exhausted
    assert not Budget(spent=100, limit=100, budget_cost=0).exhausted


@pytest.mark.parametrize("values", [{"spent": -1}, {"spent": 1.5}, {"budget_cost": -1}, {"limit": -1}, {"spent": True}])
def test_a_budget_is_made_of_whole_numbers(values: dict) -> None:
    with pytest.raises(ValueError, match="whole number of units"):
        Budget(**({"spent": 0, "limit": 10, "budget_cost": 1} | values))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cap_or_noise_that_is_not_above_zero_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"^max_distance is"):
        charge_of(bad, 1.0)
    with pytest.raises(ValueError, match=r"^noise_std is"):
        charge_of(1.0, bad)


@pytest.mark.parametrize("limit", [1, 7, 100, 71_831])
def test_nothing_that_is_charged_makes_room_in_an_exhausted_budget(limit: int) -> None:
    """Why the fallback cannot be a rewind: whatever it costs, the next update fits no better afterwards."""
    for budget_cost in (1, 3, 50, limit):
        if budget_cost > limit:
            continue
        spent = (limit // budget_cost) * budget_cost
        budget = Budget(spent=spent, limit=limit, budget_cost=budget_cost)
        assert budget.exhausted and budget.limit is not None
        for own in range(1, 2 * budget_cost + 1, max(1, budget_cost // 7)):
            fits = own <= limit - spent
            assert not (fits and own >= budget_cost), "at the generation's own cap it never fits"
            if fits:
                assert Budget(spent=spent + own, limit=limit, budget_cost=budget_cost).exhausted
