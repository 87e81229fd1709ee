"""The accountant: additive in mu^2, in whole units of 1e-12. Standard library only.

Charges are rounded up and limits down, in exact rational arithmetic, so that no sequence of updates can
exceed the (epsilon, delta) of the policy by rounding. Epsilon is derived from the sum, never summed.

It follows the exact curve of the Gaussian mechanism, from mu = 1e-8 to 50 and beyond: Balle and Wang 2018
(arXiv 1805.06530), theorem 8; Dong, Roth and Su 2022 (arXiv 1905.02383), corollary 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

UNITS = 10**12
"""units in mu^2 = 1"""

LARGEST = 2**63 - 1
"""the largest number of units that a database column holds"""
LEAST_DELTA = 1e-12
"""the smallest delta of a claim: the noise ends at 8.57 noise_std, which a smaller probability would not survive"""


class Overspent(ValueError):
    """A charge does not fit in what is left. The budget is unchanged."""


def charge_of(max_distance: float, noise_std: float) -> int:
    """Return the units that one update costs: (max_distance/noise_std)^2 in 1e-12, rounded up."""
    cap, noise = _positive("max_distance", max_distance), _positive("noise_std", noise_std)
    units = math.ceil((cap / noise) ** 2 * UNITS)
    return _storable(
        units, f"An update at max_distance {max_distance!r} and noise_std {noise_std!r}", "Raise noise_std."
    )


@lru_cache(maxsize=1024)
def limit_of(epsilon: float, delta: float) -> int:
    """Return the units that (epsilon, delta) allows in all, rounded down. Cached: every update asks for them."""
    units = math.floor(Fraction(mu_at(epsilon, delta)) ** 2 * UNITS)
    return _storable(units, f"A limit of epsilon {epsilon!r} at delta {delta!r}", "Lower epsilon.")


def mu_of(spent: int) -> float:
    """Return mu of everything spent so far, rounded up so that no rounding makes it too small."""
    return math.nextafter(math.sqrt(spent / UNITS), math.inf) if spent else 0.0


def epsilon_of(spent: int, delta: float) -> float:
    """Return the epsilon at ``delta`` of everything spent so far, rounded up."""
    return epsilon_at(mu_of(spent), delta)


def would_overspend(spent: int, limit: int | None, budget_cost: int) -> bool:
    """Tell whether this charge would exceed the limit. No limit means never."""
    return limit is not None and spent + budget_cost > limit


def updates_left(spent: int, limit: int | None, budget_cost: int) -> int | None:
    """Return how many updates still fit; None where no limit applies (none is set, or updates are free)."""
    if limit is None or budget_cost == 0:
        return None
    return max(0, limit - spent) // budget_cost


@dataclass(frozen=True)
class Budget:
    """A generation's budget: ``spent`` of ``limit`` units, ``budget_cost`` an update. No limit: guarantee none."""

    spent: int
    limit: int | None
    budget_cost: int

    def __post_init__(self) -> None:
        for name, value in (("spent", self.spent), ("budget_cost", self.budget_cost), ("limit", self.limit)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ValueError(f"{name} is {value!r}. It must be a whole number of units, at least 0.")
        if self.limit is not None and self.spent > self.limit:
            raise Overspent(f"{self.spent} units are spent of a limit of {self.limit}.")

    @property
    def updates_left(self) -> int | None:
        """Return how many updates still fit; None where no limit applies."""
        return updates_left(self.spent, self.limit, self.budget_cost)

    @property
    def exhausted(self) -> bool:
        """Tell whether the next update does not fit."""
        return would_overspend(self.spent, self.limit, self.budget_cost)


def _positive(name: str, value: float) -> Fraction:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}. It must be a finite number above 0.")
    return Fraction(value)


def _storable(units: int, what: str, hint: str) -> int:
    if units > LARGEST:
        raise ValueError(f"{what} is more units than can be counted ({LARGEST:.3g}). {hint}")
    return units


def log_delta_at(epsilon: float, mu: float) -> float:
    """Return the logarithm of the smallest delta at which N(0, 1) and N(mu, 1) are (epsilon, delta)-indistinguishable.

    Equals ``log(Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2))``; -inf at mu = 0. The two
    terms cancel when mu is small, so there the same quantity is integrated in a form with terms that are all
    positive: ``int_0^inf phi(x + t) (1 - exp(-mu t)) dt`` with ``x = epsilon/mu - mu/2``.
    """
    check_number("epsilon", epsilon, least=0.0)
    check_number("mu", mu, least=0.0)
    if mu == 0:
        return -math.inf
    x = epsilon / mu - mu / 2
    if mu >= 1 and x <= 0:
        return math.log(_phi(-x) - math.exp(epsilon + _log_phi_below(x + mu)))
    return -x * x / 2 - math.log(2 * math.pi) / 2 + math.log(_excess(x, mu))


def delta_at(epsilon: float, mu: float) -> float:
    """Return the smallest delta at this epsilon >= 0 and mu >= 0; see ``log_delta_at``."""
    return math.exp(log_delta_at(epsilon, mu))


def epsilon_at(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with ``delta_at(epsilon, mu) <= delta``, rounded up."""
    check_delta(delta)
    check_number("mu", mu, least=0.0)
    return _epsilon_at(mu, delta)


def mu_at(epsilon: float, delta: float) -> float:
    """Return the largest mu with ``delta_at(epsilon, mu) <= delta``, rounded down."""
    check_delta(delta)
    target = math.log(delta) - ROUNDING
    low, high = 0.0, 1.0
    while log_delta_at(epsilon, high) <= target:
        low, high = high, high * 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if log_delta_at(epsilon, middle) <= target else (low, middle)
    return low


@lru_cache(maxsize=1024)  # a certificate is checked when it is made, read and signed
def _epsilon_at(mu: float, delta: float) -> float:
    """Find it by Newton's method from the tail's bound. The logarithm is concave and falls: no step ends below it."""
    target = math.log(delta) - ROUNDING
    if log_delta_at(0.0, mu) <= target:
        return 0.0
    epsilon, following = math.inf, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    while following < epsilon:
        epsilon = following
        reached = log_delta_at(epsilon, mu)
        falls = epsilon + _log_phi_below(epsilon / mu + mu / 2) - reached  # the logarithm of the slope
        following = max(0.0, epsilon - (target - reached) * math.exp(-falls))
    step = math.ulp(epsilon)
    while reached > target:  # the last step's rounding
        epsilon, step = epsilon + step, 2 * step
        reached = log_delta_at(epsilon, mu)
    return epsilon


ROUNDING = 1e-12
"""given away on the safe side: more than the relative error of the curve (tests hold it to 1e-13)"""


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _log_phi_below(x: float) -> float:
    """Return log Phi(-x) for x >= 0, by the tail integral where erfc would run out of digits."""
    if x < 20:
        return math.log(_phi(-x))
    return -x * x / 2 - math.log(2 * math.pi) / 2 + math.log(_integrate(lambda t: math.exp(-x * t - t * t / 2), 1 / x))


def _excess(x: float, mu: float) -> float:
    """Return int_0^inf exp(-x t - t^2/2) (1 - exp(-mu t)) dt for x >= -1/2, relative error about 1e-15."""
    return _integrate(lambda t: -math.expm1(-mu * t) * math.exp(-x * t - t * t / 2), 1 / max(1.0, x))


def _integrate(integrand: Callable[[float], float], scale: float) -> float:
    """Integrate from 0 to infinity what is smooth and falls at least like exp(-t/scale), by exp-sinh quadrature.

    The trapezoid rule in s, with t = scale exp(s - exp(-s)) (Takahasi and Mori 1974), converges exponentially.
    """
    return math.fsum(integrand(t := scale * node) * t * weight for node, weight in _NODES) / 16


_NODES = [(math.exp(s - math.exp(-s)), 1 + math.exp(-s)) for s in (k / 16 for k in range(-70, 90))]


def check_number(name: str, value: float | None, *, least: float | None = None, above: float | None = None) -> None:
    """Raise ValueError unless the value is a finite number in range."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value is None:
        raise ValueError(f"{name} is {value!r}. It must be a finite number.")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value!r}. It must be at least {least:g}.")
    if above is not None and value <= above:
        raise ValueError(f"{name} is {value!r}. It must be above {above:g}.")


def check_delta(delta: float | None) -> None:
    """Raise ValueError unless 0 < delta < 1."""
    check_number("delta", delta, above=0.0)
    if delta is not None and delta >= 1:
        raise ValueError(f"delta is {delta!r}. It must be below 1.")
