"""Attack the claims of one prepared model: one row for each claim and attack."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from expunge_lab.attack.canaries import Cast
from expunge_lab.attack.rehearsal import Prepared, Update, rehearse, worlds_of
from expunge_lab.experiment.lower_bound import (
    LowerBounds,
    Noise,
    detectable_by_guesses,
    detectable_by_noise,
    from_guesses,
    from_noise,
)
from expunge_lab.experiment.two_worlds import Worlds, attack, side_by_side
from expunge_workers.guarantee.certify import published_of
from expunge_workers.guarantee.terms import Terms
from unlearning.accounting.budget import epsilon_of, mu_of, updates_left
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.accounting.composition import Allowance, at_limit
from unlearning.types import Progress

LOOKED_AT = 4096
"""weights that a trial publishes: those that the forgotten and the retrained model differ in most"""
MOST_VERSIONS = 100_000
"""of one sequence"""
WHOLE_SHARE = 100
"""one trial in so many is certified and read back from the checkpoint's bytes"""
LEAST_WHOLE = 4


@dataclass(frozen=True)
class TrialPlan:
    """How much is tried: trials of each attack, updates in a sequence, canaries."""

    trials: int
    updates: int
    canaries: int
    seed: int


@dataclass(frozen=True)
class AttackRow:
    """One claim under one attack. ``mu``, ``epsilon``, ``delta`` are claimed; ``detectable`` is the smallest true mu
    that this attack would very probably have shown to exceed the claim. ``seen`` counts guesses or numbers."""

    method: str
    guarantee: Guarantee
    attack: str
    versions: int
    mu: float
    epsilon: float
    delta: float
    found: LowerBounds
    seen: int
    detectable: float

    @property
    def exceeded(self) -> bool:
        """Tell whether the claim is refuted."""
        return self.found.exceeds(self.mu, self.epsilon)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "method": self.method,
            "guarantee": self.guarantee.value,
            "attack": self.attack,
            "versions": self.versions,
            "claimed": {"mu": self.mu, "epsilon": self.epsilon, "delta": self.delta},
            "found": {"mu": self.found.mu, "epsilon": self.found.epsilon, "epsilon_any": self.found.epsilon_any},
            "seen": self.seen,
            "detectable_mu": self.detectable,
            "exceeded": self.exceeded,
        }


@dataclass(frozen=True)
class Trials:
    """What every row of one model is measured with. ``sequences``: one for each canary."""

    terms: Terms
    dtype: torch.dtype
    sequences: tuple[tuple[Update, ...], ...]
    plan: TrialPlan
    generator: torch.Generator

    @classmethod
    def of(cls, made: Prepared, cast: Cast, plan: TrialPlan, generator: torch.Generator, progress: Progress) -> Trials:
        """Rehearse the updates of every canary's sequence. Raises Refused."""
        total = plan.canaries * plan.updates
        done = iter(range(1, total + 1))
        people = [cast.leaving(canary, plan.updates) for canary in range(plan.canaries)]
        rehearsed = tuple(rehearse(made, each, lambda: progress(next(done) / total)) for each in people)
        return cls(made.terms, made.bench.problem.dtype, rehearsed, plan, generator)

    @property
    def greatest_distance(self) -> float:
        """Return how far an update ended from its retraining, at most."""
        return max(update.distance for sequence in self.sequences for update in sequence)

    def rows(self, progress: Callable[[str, float], None]) -> Iterator[AttackRow]:
        """Attack. Under ``exact`` there is no noise and no distance to spend: only the versions themselves."""
        seen = [looked_at(worlds_of(each)) for each in self.sequences]
        for count in sorted({1, self.plan.updates}):
            yield self._guessed("forgotten", [each.first(count) for each in seen], self._claim(count), progress)
        if self.terms.guarantee is Guarantee.EXACT:
            return
        cap, last = self.terms.max_distance, self._claim(self.plan.updates)
        allowed = [each.as_far_as_allowed(cap) for each in seen]
        yield self._guessed("as far as allowed", allowed, last, progress)
        if self.plan.updates > 1:
            pairs = self.plan.updates - self.plan.updates % 2
            turning = [each.first(pairs).as_far_as_allowed(cap, turning=True) for each in seen]
            yield self._guessed("versions compared", turning, self._claim(pairs), progress)
        yield self._whole_budget(progress)
        yield from self._measured(progress)

    def _claim(self, versions: int) -> Claim:
        return self.sequences[0][versions - 1].claim

    def _guessed(
        self, name: str, worlds: Sequence[Worlds], claim: Claim, progress: Callable[[str, float], None]
    ) -> AttackRow:
        versions = len(worlds[0].never)
        return self._guess(name, worlds, (versions, claim.mu or 0.0, claim.epsilon or 0.0), progress)

    def _whole_budget(self, progress: Callable[[str, float], None]) -> AttackRow:
        """Attack all updates that fit, each as far off as allowed; their claim is that of ``from_this_version_on``."""
        terms = self.terms
        fit = updates_left(0, terms.limit, terms.budget_cost) or 0
        count = min(fit, MOST_VERSIONS)
        bound = at_limit([Allowance(1, terms.guarantee, terms.limit)], terms.delta)
        spent = count * terms.budget_cost
        claimed = (count, mu_of(spent), epsilon_of(spent, terms.delta))
        if bound is not None and count == fit:
            claimed = (count, bound.mu, bound.epsilon)
        return self._guess("whole budget", [side_by_side(count, terms.max_distance)], claimed, progress)

    def _guess(
        self,
        name: str,
        worlds: Sequence[Worlds],
        claimed: tuple[int, float, float],
        progress: Callable[[str, float], None],
    ) -> AttackRow:
        publish = partial(published_of, self.terms, dtype=self.dtype)
        guesses = attack(worlds, publish, self.plan.trials, self.generator, partial(progress, name))
        found = from_guesses(guesses, self.terms.delta)
        return self._row(name, claimed, found, guesses.trials, detectable_by_guesses(claimed[1], guesses.trials))

    def _row(
        self, name: str, claimed: tuple[int, float, float], found: LowerBounds, seen: int, detectable: float
    ) -> AttackRow:
        terms, (versions, mu, epsilon) = self.terms, claimed
        return AttackRow(
            terms.method, terms.guarantee, name, versions, mu, epsilon, terms.delta, found, seen, detectable
        )

    def _measured(self, progress: Callable[[str, float], None]) -> Iterator[AttackRow]:
        """Measure the noise of whole publications, of their differences and of their sums, against the claims."""
        noise = self._whole_publications(progress)
        cap, updates = self.terms.max_distance, self.plan.updates
        far = max(math.hypot(*(update.distance for update in sequence)) for sequence in self.sequences)
        yield self._by_noise("distance measured", noise[0], far, updates)
        yield self._by_noise("noise measured", noise[0], math.sqrt(updates) * cap, updates)
        if updates > 1:
            yield self._by_noise("noise of differences", noise[1], 2 * cap, 2)
            yield self._by_noise("noise of sums", noise[2], 2 * cap, 2)

    def _by_noise(self, name: str, noise: Noise, signal: float, versions: int) -> AttackRow:
        claim = self._claim(versions)
        mu = claim.mu or 0.0
        found = from_noise(noise, signal, self.terms.delta)
        claimed = (versions, mu, claim.epsilon or 0.0)
        return self._row(name, claimed, found, noise.numbers, detectable_by_noise(mu, noise.numbers))

    def _whole_publications(self, progress: Callable[[str, float], None]) -> tuple[Noise, Noise, Noise]:
        each, differences, sums = Noise(), Noise(), Noise()
        count = whole(self.plan.trials)
        for draw in range(count):
            sequence = self.sequences[draw % len(self.sequences)]
            drawn = [update.published() - update.weights for update in sequence]
            for noise in drawn:
                each = each.and_of(noise)
            if len(drawn) > 1:
                differences, sums = differences.and_of(drawn[0] - drawn[1]), sums.and_of(drawn[0] + drawn[1])
            progress("whole publications", (draw + 1) / count)
        return each, differences, sums


def whole(trials: int) -> int:
    """Return how many sequences are certified and read back as a whole."""
    return max(LEAST_WHOLE, trials // WHOLE_SHARE)


def looked_at(worlds: Worlds) -> Worlds:
    """Return the weights that differ most at the first version, at most ``LOOKED_AT``."""
    count = min(LOOKED_AT, worlds.never.shape[1])
    return worlds.seen_at(worlds.moved[0].abs().topk(count).indices)


def seconds_of(made: Prepared, plan: TrialPlan, preparing: float) -> float:
    """Estimate how long the attacks on a model take whose preparation took ``preparing`` seconds."""
    terms, dimension = made.terms, made.bench.problem.dimension
    bounded = terms.guarantee is not Guarantee.EXACT
    small = _publishing(terms, min(LOOKED_AT, dimension))
    fit = min(MOST_VERSIONS, updates_left(0, terms.limit, terms.budget_cost) or 0) if bounded else 0
    publications = plan.trials * (1 + plan.updates * (3 if bounded else 1))
    long = plan.trials * _publishing(terms, fit) if bounded else 0.0
    certified = whole(plan.trials) * plan.updates * preparing / 10 if bounded else 0.0
    return 2 * plan.canaries * plan.updates * preparing + publications * small + long + certified


def _publishing(terms: Terms, count: int) -> float:
    weights: Tensor = torch.zeros(count, dtype=torch.float64)
    start = time.perf_counter()
    for _ in range(5):
        published_of(terms, weights, torch.float32)
    return (time.perf_counter() - start) / 5
