"""From an attacker's errors to what a claim must at least be: lower bounds on mu and on epsilon.

The attacker decides between two worlds, "she was forgotten" and "she was never there". A claim limits how well anybody
can decide, so an attacker who errs too rarely refutes it. One who errs often shows nothing.

Two claims are bounded. Epsilon at delta, for any mechanism: the error rates a (alarms) and b (misses) of every test
satisfy ``a + exp(epsilon) b >= 1 - delta`` and ``b + exp(epsilon) a >= 1 - delta`` (Kairouz, Oh and Viswanath 2015,
arXiv 1311.0776, theorem 2.1). And mu, for the Gaussian curve that certificates state:
``Phi^-1(1 - a) - Phi^-1(b) <= mu`` (Dong, Roth and Su 2022, arXiv 1905.02383, definition 2.6; used to audit by Nasr et
al. 2023, arXiv 2302.07956). Both are also applied to the mean error (a + b)/2, which a fair coin gives directly and
which is known more sharply: ``(a + b)/2 >= (1 - delta)/(1 + exp(epsilon))`` and ``(a + b)/2 >= Phi(-mu/2)``.

Rates are bounded by Clopper and Pearson (1934), so nothing is approximated: a bound that exceeds a true claim has a
probability of at most ``ALPHA``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import bdtr, betainccinv, chdtri, log_ndtr, ndtr, ndtri
from torch import Tensor

ALPHA = 1e-6
"""the probability that a bound exceeds a true claim, for each bound"""
LARGEST_MU = 50.0
"""what is found is cut here: the curve is tested up to it, and no claim comes near"""
POWER = 0.99
"""how surely the smallest detectable overclaim is detected"""


@dataclass(frozen=True)
class Guesses:
    """An attacker's trials: in ``forgotten`` of them she was forgotten, in ``never`` she was never there.

    ``missed``: forgotten, and taken for never there. ``alarms``: the other way round. A fair coin, not the data, says
    which world a trial is in.
    """

    forgotten: int
    missed: int
    never: int
    alarms: int

    @property
    def trials(self) -> int:
        """Return how many trials there were."""
        return self.forgotten + self.never

    @property
    def errors(self) -> int:
        """Return how many guesses were wrong."""
        return self.missed + self.alarms


@dataclass(frozen=True)
class Noise:
    """Noise that was seen: how many independent numbers, and the sum of their squares."""

    numbers: int = 0
    squares: float = 0.0

    def and_of(self, seen: Tensor) -> Noise:
        """Return this together with the numbers of a tensor of any shape."""
        return Noise(self.numbers + seen.numel(), self.squares + float(seen.double().square().sum()))


@dataclass(frozen=True)
class LowerBounds:
    """Lower bounds, together true with probability 1 - ALPHA.

    ``epsilon`` is what the Gaussian curve makes of ``mu`` at the claim's delta; ``epsilon_any`` holds for any mechanism
    and is weaker. It is 0 where only the noise was measured.
    """

    mu: float
    epsilon: float
    epsilon_any: float

    def exceeds(self, mu: float, epsilon: float) -> bool:
        """Tell whether a claim of this mu and epsilon is refuted."""
        return self.mu > mu or self.epsilon > epsilon or self.epsilon_any > epsilon


def greatest_rate(errors: int, trials: int, alpha: float) -> float:
    """Return the upper Clopper-Pearson bound of a rate; 1 without trials, or where each was an error."""
    if errors >= trials:
        return 1.0
    return float(betainccinv(errors + 1, trials - errors, alpha))


def least_mu(seen: Guesses) -> float:
    """Return the lower bound of mu alone, from 0 to LARGEST_MU."""
    mean, misses, alarms = _greatest_rates(seen)
    return _cut(max(-2 * ndtri(mean), -ndtri(alarms) - ndtri(misses)))


def from_guesses(seen: Guesses, delta: float) -> LowerBounds:
    """Return what these guesses show, for mu and for epsilon at ``delta``."""
    mean, misses, alarms = _greatest_rates(seen)
    ratios = ((1 - delta) / mean - 1, _ratio(1 - delta - misses, alarms), _ratio(1 - delta - alarms, misses))
    mu = least_mu(seen)
    return LowerBounds(mu, epsilon_on_the_curve(mu, delta), math.log(max(1.0, *ratios)))


def from_noise(seen: Noise, signal: float, delta: float) -> LowerBounds:
    """Return what noise of this size hides of a signal of this length: mu is at least signal / (greatest deviation).

    The noise is taken to be Gaussian around 0; then ``squares`` over its variance is chi-square distributed.
    """
    deviation = math.sqrt(seen.squares / chdtri(seen.numbers, 1 - ALPHA)) if seen.numbers else math.inf
    mu = _cut(signal / deviation if deviation else math.inf)
    return LowerBounds(mu, epsilon_on_the_curve(mu, delta), 0.0)


def detectable_by_guesses(claimed: float, trials: int) -> float:
    """Return the smallest true mu whose bound exceeds a claimed mu with probability POWER; LARGEST_MU if none does.

    Near mu = 0 it is about ``claimed + 18.1/sqrt(trials)``.
    """
    most = _most_errors(claimed, trials)
    return _smallest(lambda mu: most >= 0 and bdtr(most, trials, ndtr(-mu / 2)) >= POWER, claimed)


def detectable_by_noise(claimed: float, numbers: int) -> float:
    """Return the smallest true mu whose bound by ``from_noise`` exceeds a claimed mu with probability POWER.

    For many numbers it is about ``claimed (1 + 5.1/sqrt(numbers))``.
    """
    if not numbers:
        return LARGEST_MU
    return claimed * math.sqrt(chdtri(numbers, 1 - POWER) / chdtri(numbers, 1 - ALPHA))


def epsilon_on_the_curve(mu: float, delta: float) -> float:
    """Return, rounded down, the epsilon at which N(0, 1) and N(mu, 1) are (epsilon, delta)-indistinguishable.

    The curve is Balle and Wang's (2018, arXiv 1805.06530, theorem 8). It is computed here once more, from scipy's
    normal distribution: an auditor who asked the accountant would repeat its mistake.
    """

    def exceeds(epsilon: float) -> bool:
        below = math.exp(min(epsilon + log_ndtr(-epsilon / mu - mu / 2), 0.0))
        return bool(ndtr(-epsilon / mu + mu / 2) - below > delta)

    if mu <= 0 or not exceeds(0.0):
        return 0.0
    low, high = 0.0, mu * mu / 2 + 10 * mu  # there the first term alone is Phi(-10), below any delta of a claim
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return low * (1 - 1e-9)


def _greatest_rates(seen: Guesses) -> tuple[float, float, float]:
    """Return bounds of the mean error, the misses and the alarms: half of ALPHA for the first, a quarter for each."""
    return (
        greatest_rate(seen.errors, seen.trials, ALPHA / 2),
        greatest_rate(seen.missed, seen.forgotten, ALPHA / 4),
        greatest_rate(seen.alarms, seen.never, ALPHA / 4),
    )


def _most_errors(claimed: float, trials: int) -> int:
    """Return the most errors whose bound by the mean error still exceeds a claimed mu; -1 if not even none does."""
    low, high = -1, trials
    while high - low > 1:
        middle = (low + high) // 2
        exceeds = -2 * ndtri(greatest_rate(middle, trials, ALPHA / 2)) > claimed
        low, high = (middle, high) if exceeds else (low, middle)
    return low


def _smallest(detects: Callable[[float], bool], claimed: float) -> float:
    """Return, to three digits and a bit, the smallest mu from ``claimed`` on that is detected."""
    low, high = claimed, LARGEST_MU
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if detects(middle) else (middle, high)
    return high


def _cut(mu: float) -> float:
    return min(max(float(mu), 0.0), LARGEST_MU)


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.inf
