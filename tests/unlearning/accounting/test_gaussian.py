"""The exact Gaussian curve against 60 digits of mpmath and against dp-accounting."""

from __future__ import annotations

import math

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from unlearning.accounting.budget import ROUNDING, delta_at, epsilon_at, log_delta_at, mu_at

MUS = [1e-8, 1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.999, 1.0, 1.001, 2.0, 5.0, 10.0, 25.0, 50.0]
EPSILONS = [0.0, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 8.45, 30.0, 200.0, 1250.0, 2000.0]


def true_log_delta(epsilon: float, mu: float) -> float | None:
    """60 significant digits beyond the cancellation; None where delta is below exp(-1000)."""
    with mpmath.workdps(40):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        x = epsilon / mu - mu / 2
        if x > 45:
            return None
        with mpmath.workdps(60 + int(max(0, x) ** 2 / 4) + 40):
            tail = lambda z: mpmath.erfc(z / mpmath.sqrt(2)) / 2  # noqa: E731
            return float(mpmath.log(tail(x) - mpmath.exp(epsilon) * tail(x + mu)))


@pytest.mark.parametrize("mu", MUS)
def test_the_curve_equals_mpmath(mu: float) -> None:
    # relative to mu as well as absolute, so that epsilon/mu is covered at every scale of mu
    epsilons = EPSILONS + [ratio * mu for ratio in (1e-3, 0.3, 1.0, 3.0, 10.0, 40.0)] + [mu * mu / 2]
    for epsilon in epsilons:
        expected = true_log_delta(epsilon, mu)
        if expected is None:
            assert log_delta_at(epsilon, mu) < -1000
            continue
        # near delta = 1 the logarithm is tiny: absolute there, relative in delta elsewhere
        assert log_delta_at(epsilon, mu) == pytest.approx(expected, rel=1e-13, abs=1e-13), (mu, epsilon)


def test_nothing_spent_hides_nothing() -> None:
    assert delta_at(0.0, 0.0) == 0.0
    assert delta_at(1.0, 0.0) == 0.0
    assert epsilon_at(0.0, 1e-5) == 0.0


def test_small_mu_keeps_every_digit() -> None:
    # erf(mu / (2 sqrt 2)), whose subtraction form has no correct digit left at 1e-16 / 1e-8
    for mu in (1e-8, 1e-12, 1e-15):
        assert delta_at(0.0, mu) == pytest.approx(math.erf(mu / (2 * math.sqrt(2))), rel=1e-13)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-8, 50), st.floats(1e-12, 0.5))
def test_epsilon_is_the_smallest_that_holds_and_errs_upwards(mu: float, delta: float) -> None:
    epsilon = epsilon_at(mu, delta)
    truth = true_log_delta(epsilon, mu)
    assert truth is None or truth <= math.log(delta)
    if epsilon > 1e-9:
        assert delta_at(epsilon * (1 - 1e-9), mu) > delta * (1 - 1e-9)


def epsilon_by_halving(mu: float, delta: float) -> float:
    """The slow twin of ``epsilon_at``: two neighbours of which the upper one holds."""
    target = math.log(delta) - ROUNDING
    if log_delta_at(0.0, mu) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while log_delta_at(high, mu) > target:
        low, high = high, high * 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if log_delta_at(middle, mu) <= target else (middle, high)
    return high


DELTAS = [1e-300, 1e-30, 1e-12, 1e-9, 1e-5, 1e-3, 0.1, 0.5, 0.9]


@pytest.mark.parametrize("mu", [1e-100, 1e-20, *MUS, 1e3, 1e6])
def test_steps_from_above_find_what_halving_finds(mu: float) -> None:
    for delta in DELTAS:
        holds_like_halving(mu, delta)


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-8, 50), st.floats(1e-12, 0.9))
def test_steps_from_above_find_what_halving_finds_anywhere(mu: float, delta: float) -> None:
    holds_like_halving(mu, delta)


def holds_like_halving(mu: float, delta: float) -> None:
    """Rounding makes the curve uneven within some neighbours: there each may stop at another one that holds."""
    found, slow = epsilon_at(mu, delta), epsilon_by_halving(mu, delta)
    assert found == 0 or log_delta_at(found, mu) <= math.log(delta) - ROUNDING, (mu, delta)
    assert found == pytest.approx(slow, rel=1e-12, abs=1e-15 * delta), (mu, delta)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 200), st.floats(1e-12, 0.5))
def test_mu_is_the_largest_that_holds_and_errs_downwards(epsilon: float, delta: float) -> None:
    mu = mu_at(epsilon, delta)
    assert true_log_delta(epsilon, mu) <= math.log(delta)
    assert delta_at(epsilon, mu * (1 + 1e-9)) > delta
    assert epsilon_at(mu, delta) == pytest.approx(epsilon, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-8, 49), st.floats(0, 60))
def test_delta_grows_with_mu_and_falls_with_epsilon(mu: float, epsilon: float) -> None:
    assert log_delta_at(epsilon, mu * 1.01) >= log_delta_at(epsilon, mu)
    assert log_delta_at(epsilon * 1.01 + 1e-6, mu) <= log_delta_at(epsilon, mu)


@pytest.mark.parametrize("mu", [0.05, 0.268, 1.0, 3.0])
def test_the_curve_agrees_with_the_pld_of_dp_accounting(mu: float) -> None:
    interval = 1e-4
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=1 / mu, value_discretization_interval=interval
    )
    for delta in (1e-3, 1e-5, 1e-8):
        ours = epsilon_at(mu, delta)
        assert ours <= pld.get_epsilon_for_delta(delta) <= ours + interval  # the PLD rounds losses up


def test_composed_updates_agree_with_the_composed_pld() -> None:
    mu, updates = 0.05, 20
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=1 / mu, value_discretization_interval=1e-4
    ).self_compose(updates)
    ours = epsilon_at(mu * math.sqrt(updates), 1e-5)
    assert ours <= pld.get_epsilon_for_delta(1e-5) <= ours + 1e-3


def test_the_common_rule_would_claim_too_much() -> None:
    # noise_std = sqrt(2 ln(1.25/delta)) / epsilon is false from epsilon 8.42 on at delta = 1e-5: why it is not used
    def rule(epsilon: float) -> float:
        return delta_at(epsilon, epsilon / math.sqrt(2 * math.log(1.25 / 1e-5)))

    assert rule(8.41) <= 1e-5 < rule(8.43) < rule(8.45) < rule(20.0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: delta_at(-1.0, 1.0), "epsilon"),
        (lambda: delta_at(1.0, -1.0), "mu"),
        (lambda: delta_at(math.nan, 1.0), "epsilon"),
        (lambda: epsilon_at(1.0, 0.0), "delta"),
        (lambda: epsilon_at(1.0, 1.0), "delta"),
        (lambda: epsilon_at(math.inf, 0.1), "mu"),
        (lambda: mu_at(1.0, -0.1), "delta"),
    ],
)
def test_a_number_outside_its_range_is_named(call, named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named} is "):
        call()
