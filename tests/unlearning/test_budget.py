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
    Prepared,
    Released,
    Withheld,
    after,
    charge_of,
    epsilon_of,
    limit_of,
    mu_of,
    releases_left,
    would_overspend,
)
from unlearning.accounting.gaussian import mu_at

sizes = st.floats(1e-9, 1e3)


@given(sizes, sizes)
def test_a_charge_is_rounded_up_by_less_than_one_unit(delta_cap: float, sigma: float) -> None:
    exact = (Fraction(delta_cap) / Fraction(sigma)) ** 2 * UNITS
    if exact > 2**63 - 1:
        with pytest.raises(ValueError, match="Raise sigma"):
            charge_of(delta_cap, sigma)
        return
    assert 0 <= charge_of(delta_cap, sigma) - exact < 1
    assert charge_of(delta_cap, sigma) >= 1


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-3, 100), st.floats(1e-12, 0.1))
def test_a_limit_is_rounded_down_by_less_than_one_unit(epsilon: float, delta: float) -> None:
    exact = Fraction(mu_at(epsilon, delta)) ** 2 * UNITS
    assert 0 <= exact - limit_of(epsilon, delta) < 1


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 20), st.floats(1e-9, 1e-2), st.floats(1e-4, 1.0), st.floats(1e-6, 1e-2))
def test_spending_everything_never_exceeds_the_policys_epsilon(
    epsilon: float, delta: float, sigma: float, delta_cap: float
) -> None:
    limit, charge = limit_of(epsilon, delta), charge_of(delta_cap, sigma)
    left = releases_left(0, limit, charge)
    assert epsilon_of(left * charge, delta) <= epsilon
    assert would_overspend(left * charge, limit, charge)


@given(st.integers(0, 2**62))
def test_mu_of_what_is_spent_is_never_too_small(spent: int) -> None:
    assert Fraction(mu_of(spent)) ** 2 * UNITS >= spent
    assert Fraction(mu_of(spent)) ** 2 * UNITS <= spent * (1 + Fraction(1, 10**14))


events = st.lists(st.sampled_from([Released(), Withheld(), Prepared()]), max_size=40)


@given(st.integers(0, 1000), st.integers(0, 100), events)
def test_no_sequence_of_events_exceeds_the_limit_or_miscounts(limit: int, charge: int, sequence: list) -> None:
    budget = Budget(spent=0, limit=limit, charge=charge)
    for count, event in enumerate(sequence):
        try:
            budget = after(budget, [event])
        except Overspent:
            assert budget.spent + charge > limit and not isinstance(event, Prepared)
            assert budget.exhausted and budget.releases_left == 0
            break
        paid = sum(not isinstance(each, Prepared) for each in sequence[: count + 1])
        assert budget.spent == paid * charge <= limit


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**4))
def test_releases_left_is_the_number_that_fits_exactly(spent: int, limit: int, charge: int) -> None:
    left = releases_left(spent, limit, charge)
    assert left == 0 or not would_overspend(spent + (left - 1) * charge, limit, charge)
    assert would_overspend(spent + left * charge, limit, charge)


def test_the_order_of_events_does_not_matter_and_a_held_draw_costs_like_a_release() -> None:
    budget = Budget(spent=0, limit=100, charge=7)
    assert after(budget, [Released(), Withheld()]) == after(budget, [Withheld(), Released()])
    assert after(budget, [Withheld()]).spent == after(budget, [Released()]).spent == 7
    assert after(budget, [Prepared()]).spent == 0


def test_an_unknown_event_is_refused_before_anything_is_counted() -> None:
    budget = Budget(spent=0, limit=100, charge=7)
    with pytest.raises(TypeError, match="knows no event str"):
        after(budget, [Released(), "released"])
    assert budget.spent == 0


def test_an_overspending_sequence_changes_nothing() -> None:
    budget = Budget(spent=90, limit=100, charge=7)
    with pytest.raises(Overspent, match="97 of 100"):
        after(budget, [Released(), Released()])
    assert budget.spent == 90


def test_free_releases_and_no_limit_are_unlimited() -> None:
    assert Budget(spent=0, limit=100, charge=0).releases_left is None
    assert Budget(spent=0, limit=None, charge=0).releases_left is None
    assert not Budget(spent=0, limit=None, charge=0).exhausted
    assert not Budget(spent=100, limit=100, charge=0).exhausted


@pytest.mark.parametrize("values", [{"spent": -1}, {"spent": 1.5}, {"charge": -1}, {"limit": -1}, {"spent": True}])
def test_a_budget_is_made_of_whole_numbers(values: dict) -> None:
    with pytest.raises(ValueError, match="whole number of units"):
        Budget(**({"spent": 0, "limit": 10, "charge": 1} | values))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cap_or_noise_that_is_not_above_zero_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"^delta_cap is"):
        charge_of(bad, 1.0)
    with pytest.raises(ValueError, match=r"^sigma is"):
        charge_of(1.0, bad)


@pytest.mark.parametrize("limit", [1, 7, 100, 71_831])
def test_nothing_that_is_charged_makes_room_in_an_exhausted_budget(limit: int) -> None:
    """Why on_exhausted cannot be a rewind: whatever it costs, the next release fits no better afterwards."""
    for charge in (1, 3, 50, limit):
        if charge > limit:
            continue
        spent = (limit // charge) * charge
        budget = Budget(spent=spent, limit=limit, charge=charge)
        assert budget.exhausted and budget.limit is not None
        for own in range(1, 2 * charge + 1, max(1, charge // 7)):
            fits = own <= limit - spent
            assert not (fits and own >= charge), "at the lineage's own cap it never fits"
            if fits:
                assert Budget(spent=spent + own, limit=limit, charge=charge).exhausted
