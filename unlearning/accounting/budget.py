"""The accountant: additive in mu^2, in whole units of 1e-12. Standard library only.

Charges are rounded up and limits down, in exact rational arithmetic, so that no sequence of updates can
exceed the (epsilon, delta) of the policy by rounding. Epsilon is derived from the sum, never summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from unlearning.accounting.gaussian import epsilon_at, mu_at

UNITS = 10**12
"""units in mu^2 = 1"""

LARGEST = 2**63 - 1
"""the largest number of units that a database column holds"""


class Overspent(ValueError):
    """A charge does not fit in what is left. Nothing was changed."""


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
    """Return how many updates still fit; None where nothing limits them (no limit, or updates that cost nothing)."""
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
        """Return how many updates still fit; None where nothing limits them."""
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
