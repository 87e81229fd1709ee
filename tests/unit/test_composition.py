"""All versions from one on: the limits of every generation that held the person, and what that means in plain words."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest

from tests.unit.test_certificate import claim
from unlearning.accounting.budget import UNITS, limit_of, mu_of
from unlearning.accounting.certificate import NOT_CLAIMED, Guarantee, advantage, epsilon_at, in_plain_words
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
    assert bound is not None and bound.guarantee is Guarantee.CALIBRATED and bound.in_plain_words is None
    exact = at_limit([Allowance(1, Guarantee.EXACT, 0)], 1e-5)
    assert exact == Composition(Guarantee.EXACT, 0.0, 0.0, 1e-5) == at_limit([], 1e-5)


def test_models_add_in_mu_squared() -> None:
    bound = at_limit(proved(LIMIT), 1e-5)
    total = over_models([bound, bound, at_limit([], 1e-5)])
    assert bound is not None and total is not None
    assert Fraction(total.mu) ** 2 >= 2 * Fraction(bound.mu) ** 2 * (1 - Fraction(1, 10**15))
    assert total.guarantee is Guarantee.PROVED and total.epsilon == epsilon_at(total.mu, 1e-5)


@pytest.mark.parametrize("deltas", [(1e-5, 1e-6), (1e-6, 1e-5)])
def test_models_with_different_deltas_are_bounded_at_the_smaller(deltas: tuple[float, float]) -> None:
    """mu holds at every delta; at the smaller one epsilon is larger, so that no model's own bound is overstated."""
    total = over_models([at_limit(proved(LIMIT), delta) for delta in deltas])
    assert total is not None and total.delta == 1e-6
    assert total.epsilon == epsilon_at(total.mu, 1e-6) > epsilon_at(total.mu, 1e-5)


@pytest.mark.parametrize("mu", [1e-9, 1e-6, 0.001, 0.025066, 0.1, mu_of(LIMIT), 0.5, 1.0, 3.0, 12.0])
def test_the_laymans_number_is_the_total_variation_rounded_up(mu: float) -> None:
    exact = 100 * (2 * mpmath.ncdf(mpmath.mpf(mu) / 2) - 1)
    assert exact <= advantage(mu) <= exact + 1 + 1e-9


def test_the_laymans_sentence_says_eleven_at_epsilon_one() -> None:
    assert advantage(mu_of(LIMIT)) == 11
    assert claim().in_plain_words == (
        "On any question about her, whoever sees this version, but none from before her deletion, is right at most 11 "
        "times in 100 more often than with a model retrained without her. This holds for all later versions too."
    )


def test_the_laymans_sentence_stands_under_exact_and_proved_alone() -> None:
    assert " 0 times in 100 " in (claim(Guarantee.EXACT).in_plain_words or "")
    for guarantee in (Guarantee.CALIBRATED, Guarantee.ESTIMATED, Guarantee.NONE):
        assert claim(guarantee).in_plain_words is None and in_plain_words(guarantee, 0.1) is None


@pytest.mark.parametrize("guarantee", Guarantee)
def test_every_claim_says_that_two_versions_tell_who_left(guarantee: Guarantee) -> None:
    sentence = "Whoever keeps two versions can probably tell who left. Nothing here prevents it."
    assert sentence in NOT_CLAIMED and sentence in claim(guarantee).not_claimed
