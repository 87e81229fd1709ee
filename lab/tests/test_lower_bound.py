"""The bounds of the claims' attacker: against scipy, and never above the truth more often than they say."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from expunge_lab.experiment.lower_bound import (
    ALPHA,
    LARGEST_MU,
    POWER,
    Guesses,
    Noise,
    detectable_by_guesses,
    detectable_by_noise,
    epsilon_on_the_curve,
    from_guesses,
    from_noise,
    greatest_rate,
    least_mu,
)
from expunge_lab.experiment.two_worlds import Worlds, attack, looks_forgotten, side_by_side
from unlearning.accounting.budget import delta_at, epsilon_at

DELTA = 1e-5


@pytest.mark.parametrize(("errors", "trials"), [(0, 1), (0, 100), (3, 100), (99, 100), (4500, 10_000)])
@pytest.mark.parametrize("alpha", [0.05, 5e-7])
def test_a_rate_is_bounded_as_scipy_bounds_it(errors: int, trials: int, alpha: float) -> None:
    exact = stats.binomtest(errors, trials).proportion_ci(confidence_level=1 - 2 * alpha, method="exact").high
    assert greatest_rate(errors, trials, alpha) == pytest.approx(exact, rel=1e-9)


def test_without_trials_nothing_is_known() -> None:
    assert greatest_rate(0, 0, ALPHA) == 1.0
    assert from_guesses(Guesses(0, 0, 0, 0), DELTA).mu == 0.0
    assert from_noise(Noise(), 1.0, DELTA).mu == 0.0


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("threshold", [0.5, 0.9])
def test_the_truth_is_exceeded_less_often_than_stated(mu: float, threshold: float) -> None:
    """Every outcome of 30 trials and its probability, for the best attacker and for a lopsided one."""
    trials, never = 30, 15
    miss, alarm = stats.norm.cdf((threshold - 1) * mu), stats.norm.sf(threshold * mu)
    missed = stats.binom(trials - never, miss).pmf(range(trials - never + 1))
    alarms = stats.binom(never, alarm).pmf(range(never + 1))
    exceeding = math.fsum(
        missed[m] * alarms[a]
        for m in range(trials - never + 1)
        for a in range(never + 1)
        if least_mu(Guesses(trials - never, m, never, a)) > mu
    )
    assert exceeding <= ALPHA


def test_every_test_of_the_gaussian_curve_obeys_both_inequalities() -> None:
    """With true rates in place of bounded ones, epsilon for any mechanism is at most that of the curve."""
    for mu in (0.1, 0.5, 1.0, 4.0):
        epsilon = epsilon_at(mu, DELTA)
        for place in (-2.0, 0.0, 0.5, 1.0, 3.0):
            alarm, miss = stats.norm.sf(place * mu), stats.norm.cdf((place - 1) * mu)
            assert alarm + math.exp(epsilon) * miss >= 1 - DELTA
            assert miss + math.exp(epsilon) * alarm >= 1 - DELTA
            assert (alarm + miss) / 2 >= stats.norm.cdf(-mu / 2) - 1e-15


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("mu", [1e-4, 2e-3, 0.268, 1.0, 5.0, 50.0])
def test_the_auditors_own_curve_agrees_with_the_accountant_and_errs_downwards(mu: float, delta: float) -> None:
    own, accountant = epsilon_on_the_curve(mu, delta), epsilon_at(mu, delta)
    assert own <= accountant
    assert own == pytest.approx(accountant, rel=1e-6, abs=1e-12)


def test_the_bound_comes_close_to_the_truth() -> None:
    half = 50_000_000
    wrong = round(half * stats.norm.cdf(-0.5))
    found = from_guesses(Guesses(half, wrong, half, wrong), DELTA)
    assert 0.99 < found.mu < 1.0
    assert found.epsilon == epsilon_on_the_curve(found.mu, DELTA)
    assert delta_at(found.epsilon_any, 1.0) > DELTA  # below the true epsilon
    assert found.epsilon_any > 0.8


def test_what_is_found_ends_at_the_largest_mu() -> None:
    assert from_noise(Noise(100, 0.0), 1.0, DELTA).mu == LARGEST_MU
    assert from_guesses(Guesses(10**9, 0, 10**9, 0), DELTA).mu < LARGEST_MU


def test_measured_noise_is_exceeded_as_rarely_as_chi_square_says() -> None:
    """The bound is above the truth exactly where the squares are below their quantile at ALPHA."""
    least = stats.chi2(200).ppf(ALPHA)
    assert from_noise(Noise(200, 1.0001 * least), 0.3, DELTA).mu < 0.3
    assert from_noise(Noise(200, 0.9999 * least), 0.3, DELTA).mu > 0.3


@pytest.mark.parametrize("claimed", [0.0, 0.268, 2.0])
def test_the_smallest_detectable_overclaim_is_detected_and_a_smaller_one_less_surely(claimed: float) -> None:
    trials = 2000
    smallest = detectable_by_guesses(claimed, trials)

    def power(mu: float) -> float:
        errors = stats.binom(trials, stats.norm.cdf(-mu / 2))
        exceed = [-2 * stats.norm.ppf(greatest_rate(count, trials, ALPHA / 2)) > claimed for count in range(trials)]
        return float(errors.cdf(sum(exceed) - 1))

    assert power(smallest) >= POWER > power(0.995 * smallest)


def test_the_stated_formulas_are_close() -> None:
    for trials in (10_000, 100_000):
        assert detectable_by_guesses(0.1, trials) == pytest.approx(0.1 + 18.1 / trials**0.5, rel=0.02)
    for numbers in (10_000, 100_000):
        assert detectable_by_noise(1.0, numbers) == pytest.approx(1 + 5.1 / numbers**0.5, rel=0.01)
    assert detectable_by_guesses(1.0, 3) == LARGEST_MU
    assert detectable_by_noise(1.0, 0) == LARGEST_MU


def test_noise_adds_up() -> None:
    assert Noise().and_of(torch.tensor([[1.0, 2.0]])).and_of(torch.tensor([3.0])) == Noise(3, 14.0)


# the attacker


def worlds(mu: float, versions: int = 3, size: int = 5) -> Worlds:
    moved = torch.randn(versions, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    never = torch.randn(versions, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Worlds(never, mu * moved / moved.norm())


def test_the_guess_is_that_of_the_likelihoods() -> None:
    """The slow twin: densities of a Gaussian at each weight of each version."""
    scene, draws = worlds(1.5), torch.Generator().manual_seed(3)
    for _ in range(200):
        seen = scene.never + torch.randn(scene.never.shape, dtype=torch.float64, generator=draws)
        ours = torch.distributions.Normal(scene.never + scene.moved, 1.0).log_prob(seen).sum()
        theirs = torch.distributions.Normal(scene.never, 1.0).log_prob(seen).sum()
        assert looks_forgotten(seen, scene) == bool(ours > theirs)


def test_no_attack_on_a_gaussian_errs_less_than_theory_allows() -> None:
    draws = torch.Generator().manual_seed(4)

    def publish(weights: torch.Tensor) -> torch.Tensor:
        return weights + torch.randn(weights.shape, dtype=torch.float64, generator=draws)

    guesses = attack([worlds(2.0), side_by_side(4, 1.0)], publish, 4000, draws)
    expected = 4000 * stats.norm.cdf(-1.0)
    assert abs(guesses.errors - expected) < 5 * expected**0.5
    assert guesses.trials == 4000 and abs(guesses.never - 2000) < 200
    assert 1.6 < from_guesses(guesses, DELTA).mu < 2.0


def test_worlds_as_far_as_allowed_have_that_distance_at_each_version() -> None:
    far = worlds(0.1).as_far_as_allowed(0.5, turning=True)
    assert torch.allclose(far.moved.norm(dim=1), torch.full((3,), 0.5, dtype=torch.float64))
    assert torch.equal(far.moved[0], -far.moved[1]) and torch.equal(far.moved[0], far.moved[2])
    still = worlds(0.0).as_far_as_allowed(0.5)
    assert torch.equal(still.moved[:, 0], torch.full((3,), 0.5, dtype=torch.float64))
    assert worlds(1.0).first(2).never.shape == (2, 5)
    assert worlds(1.0).seen_at(torch.tensor([4, 0])).moved.shape == (3, 2)
