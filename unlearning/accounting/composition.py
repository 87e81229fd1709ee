"""What a certificate says of all versions from its own on: mu^2 adds, so the limits bound what will be spent later.

A generation begins with a cold training, or is charged for all earlier deletions: its version 1 is free
only when no part of it was computed from a secret state. Without that rule the sum of the limits is no bound.
Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from unlearning.accounting.budget import epsilon_at, mu_of
from unlearning.accounting.certificate import Guarantee


@dataclass(frozen=True)
class Allowance:
    """What a generation with weights computed from the person's samples may spend.

    ``limit`` is in whole units of 1e-12 mu^2; 0: no charge is needed; None: no bound.
    """

    generation: int
    guarantee: Guarantee
    limit: int | None


@dataclass(frozen=True)
class Composition:
    """One person's bound over versions that may still come. ``epsilon`` is at ``delta``."""

    guarantee: Guarantee
    mu: float
    epsilon: float
    delta: float

    @property
    def statement(self) -> str:
        """Return the bound in one sentence."""
        return (
            "All versions from this one on, over all generations that held the person: mu is at most "
            f"{self.mu:.4g}, epsilon at most {self.epsilon:.4g} at delta {self.delta:g}."
        )


def at_limit(generations: Iterable[Allowance], delta: float | None) -> Composition | None:
    """Return the bound for all these generations together: mu^2 is at most the sum of their limits.

    None where one of them has no limit, or ``delta`` is None: then there is no bound. Without any generation nothing
    was computed from the person: exact.
    """
    every = list(generations)
    limits = [each.limit for each in every if each.limit is not None]
    if delta is None or len(limits) < len(every):
        return None
    weakest = min((each.guarantee for each in every), key=lambda guarantee: guarantee.rank, default=Guarantee.EXACT)
    mu = mu_of(sum(limits))
    return Composition(weakest, mu, epsilon_at(mu, delta), delta)


def over_models(parts: Iterable[Composition | None]) -> Composition | None:
    """Return one person's bound over several models, rounded up; None where one has no bound, or without any."""
    given = list(parts)
    found = [each for each in given if each is not None]
    if not found or len(found) < len(given):
        return None
    mu = math.sqrt(math.fsum(each.mu**2 for each in found))
    mu = math.nextafter(mu, math.inf) if mu else 0.0
    delta = min(each.delta for each in found)
    weakest = min((each.guarantee for each in found), key=lambda guarantee: guarantee.rank)
    return Composition(weakest, mu, epsilon_at(mu, delta), delta)
