"""All versions from one on: the limits of every generation that held the person, and what that means in plain words."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unlearning.accounting.test_certificate import claim
from unlearning.accounting.budget import UNITS, limit_of, mu_of
from unlearning.accounting.certificate import NOT_CLAIMED, Guarantee, epsilon_at, guess
from unlearning.accounting.composition import Allowance, Composition, at_limit, over_models

LIMIT = limit_of(1.0, 1e-5)


def proved(*limits: int | None) -> list[Allowance]:
    return [Allowance(number, Guarantee.PROVED, limit) for number, limit in enumerate(limits)]


def test_the_limits_of_all_generations_add_in_mu_squared_rounded_up() -> None:
    one, three = at_limit(proved(LIMIT), 1e-5), at_limit(proved(LIMIT, LIMIT, LIMIT), 1e-5)
    assert one is not None and three is not None
    assert one.epsilon == pytest.approx(1.0, rel=1e-9) and one.epsilon <= 1 + 1e-9
    assert Fraction(three.mu) ** 2 * UNITS >= 3 * LIMIT
    assert three.mu == pytest.approx(math.sqrt(3) * one.mu, rel=1e-14)
    assert three.epsilon == epsilon_at(three.mu, 1e-5) > one.epsilon


def test_later_updates_stay_below_what_the_certificate_says() -> None:
    """The finding: after four more releases the person stood at 0.0050 where "all releases together" said 0.0019."""
    first, later = claim(updates=1), claim(updates=5)
    assert later.epsilon > first.epsilon, "the epsilon of a version is not the last word"
    assert first.epsilon_limit == later.epsilon_limit >= later.epsilon
    assert first.mu_limit == mu_of(LIMIT)
    assert "all updates together" not in first.statement
    assert "up to this version" in first.statement and f"({first.epsilon_limit:.4g}, 1e-05)" in first.statement


def test_one_generation_without_a_limit_leaves_no_bound() -> None:
    assert at_limit(proved(LIMIT, None), 1e-5) is None
    assert at_limit(proved(LIMIT), None) is None
    bound = at_limit(proved(LIMIT), 1e-5)
    assert over_models([bound, None]) is None and over_models([]) is None


def test_a_bound_is_as_strong_as_its_weakest_generation() -> None:
    bound = at_limit([*proved(LIMIT), Allowance(9, Guarantee.CALIBRATED, LIMIT)], 1e-5)
    assert bound is not None and bound.guarantee is Guarantee.CALIBRATED
    exact = at_limit([Allowance(1, Guarantee.EXACT, 0)], 1e-5)
    assert exact == Composition(Guarantee.EXACT, 0.0, 0.0, 1e-5) == at_limit([], 1e-5)


def test_models_add_in_mu_squared() -> None:
    bound = at_limit(proved(LIMIT), 1e-5)
    total = over_models([bound, bound, at_limit([], 1e-5)])
    assert bound is not None and total is not None
    assert Fraction(total.mu) ** 2 >= 2 * Fraction(bound.mu) ** 2 * (1 - Fraction(1, 10**15))
    assert total.guarantee is Guarantee.PROVED and total.epsilon == epsilon_at(total.mu, 1e-5)


@given(st.floats(0, 60), st.floats(0, 60))
@example(0.0, 5e-324)
def test_the_guess_never_falls_with_mu_and_is_phi_rounded_up_to_a_tenth(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert 50 <= guess(less) <= guess(more) <= 100
    exact = 100 * mpmath.ncdf(mpmath.mpf(less))
    assert exact <= guess(less) <= exact + mpmath.mpf("0.1") + mpmath.mpf("1e-9")


@pytest.mark.parametrize("deltas", [(1e-5, 1e-6), (1e-6, 1e-5)])
def test_models_with_different_deltas_are_bounded_at_the_smaller(deltas: tuple[float, float]) -> None:
    """mu holds at every delta; at the smaller one epsilon is larger, so that no model's own bound is overstated."""
    total = over_models([at_limit(proved(LIMIT), delta) for delta in deltas])
    assert total is not None and total.delta == 1e-6
    assert total.epsilon == epsilon_at(total.mu, 1e-6) > epsilon_at(total.mu, 1e-5)


def test_the_guess_starts_at_fifty_and_no_doubt_is_rounded_away() -> None:
    assert guess(0.0) == 50 and guess(5e-324) == guess(0.001) == 50.1
    assert guess(0.268) == 60.6 and guess(mu_of(LIMIT)) == 60.6 and guess(50) == 100
    with pytest.raises(ValueError, match="mu"):
        guess(-0.001)


@pytest.mark.parametrize("mu", [0.001, 0.1, 0.268, 0.5, 1.0])
def test_the_guess_lies_at_or_above_the_best_guess_where_both_worlds_are_at_the_cap(mu: float) -> None:
    """The version that we publish lies at the cap on one side of a retraining plus noise, and the version of a world in
    which the person's data were never used on the other: an observer sees worlds that are 2 mu apart."""
    noise = np.random.default_rng(29).standard_normal((2, 2_000_000))
    with_person, never = noise[0] + mu, noise[1] - mu
    right = 50 * ((with_person > 0).mean() + (never <= 0).mean())
    error = 100 * 4 / math.sqrt(4 * 4_000_000)
    assert right <= guess(mu) + error
    assert right > 100 * (1 + math.erf(mu / math.sqrt(8))) / 2 + error or mu < 0.01, "Phi(mu / 2) is beaten"


@pytest.mark.parametrize("guarantee", Guarantee)
def test_every_claim_says_that_two_versions_tell_who_left(guarantee: Guarantee) -> None:
    sentence = "With an old and a new version, one can probably tell who left. Nothing here prevents it."
    assert sentence in NOT_CLAIMED and sentence in claim(guarantee).not_claimed
