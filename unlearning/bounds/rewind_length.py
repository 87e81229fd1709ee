"""How many steps a rewind must take back for a wanted epsilon.

``published_steps`` is corollary 3.2 of R2D (Mu and Klabjan, arXiv 2409.09778), as it was published: with the noise of
its theorem 3.1 and one step size. ``fewest_steps`` is ours: the recursion of ``unlearning.bounds.rewind``, and the
exact Gaussian curve. Both choose K and make no claim: a claim is made of what an update really did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from unlearning.accounting.budget import mu_at
from unlearning.bounds.gradients import admitted, measured_constants, proved_constants, rounding_errors
from unlearning.bounds.published import rounded_up
from unlearning.bounds.rewind import Descent
from unlearning.model.linear_head import head_of
from unlearning.model.problem import Problem
from unlearning.types import Examples, Json, Refused


@dataclass(frozen=True)
class Wanted:
    """The epsilon at delta that ``noise_std`` shall give once ``forgotten`` samples (m) have left in all."""

    epsilon: float
    delta: float
    noise_std: float
    forgotten: int

    def distance(self) -> float:
        """Return the greatest distance to retraining that the exact Gaussian curve allows."""
        return mu_at(self.epsilon, self.delta) * self.noise_std


@dataclass(frozen=True)
class Slopes:
    """What is known of every sample's data gradient before the first update.

    ``curvature`` and ``gradient_bound`` as in ``Descent``. ``longest`` is the bound of a sample's features where these
    are closed forms, None where they were measured.
    """

    curvature: tuple[float, float]
    gradient_bound: float
    longest: float | None = None

    @classmethod
    def of(cls, problem: Problem, examples: Examples, weights: Tensor, feature_norm: float | None) -> Slopes:
        """Take the closed forms of a linear head under ``feature_norm``; without one measure, and round up to a digit.

        Measured are the start and the trained ``weights`` (d,). Raises Refused where a closed form is missing.
        """
        if feature_norm is not None:
            longest = admitted(feature_norm)
            return cls(*proved_constants(problem, longest), longest)
        smoothness, gradient = measured_constants(problem, examples, (problem.initial(), weights.to(problem.dtype)))
        clip = problem.training.sample_clip
        bend = rounded_up(smoothness)
        convex = head_of(problem) is not None and clip is None
        return cls((0.0 if convex else -bend, bend), clip or rounded_up(gradient))


def published_steps(wanted: Wanted, *, steps: int, rate: float, smoothness: float, gradient: float, n: int) -> int:
    """Return corollary 3.2's K for T = ``steps``, eta = ``rate``, L, G and n samples, rounded up, from 1 to T.

        K = log((1 + x)^T - noise_std L n epsilon / (2 m G sqrt(2 ln(1.25/delta)))) / log(1 + x),  x = eta L n/(n - m)

    Raises:
        Refused: as many samples shall leave as there are.
    """
    _require_some_left(wanted.forgotten, n)
    growth = math.log1p(rate * smoothness * n / (n - wanted.forgotten))
    noise = 2 * wanted.forgotten * gradient * math.sqrt(2 * math.log(1.25 / wanted.delta))
    allowed = wanted.noise_std * smoothness * n * wanted.epsilon / noise
    share = allowed * math.exp(-steps * growth)  # in logarithms: (1 + x)^T overflows
    if share >= 1.0:
        return 1
    return min(steps, max(1, math.ceil(steps + math.log1p(-share) / growth - 1e-9)))


def fewest_steps(descent: Descent, max_distance: float) -> int:
    """Return the least K with a bound of at most ``max_distance``: it falls as K grows.

    Raises:
        Refused: not even the whole training, taken again, stays below it, because of its rounding.
    """
    low, high = 1, len(descent.rates)
    if replace(descent, rewound=high).distance() > max_distance:
        what = f"No number of steps brings the bound below {max_distance:.3g}: rounding alone takes more."
        raise Refused(what, "Raise noise_std or epsilon, or set precision to float64.")
    while low < high:
        middle = (low + high) // 2
        if replace(descent, rewound=middle).distance() <= max_distance:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class Length:
    """K, and what it was chosen by: the rule, and the L and G that it took."""

    steps: int
    why: Mapping[str, Json]


@dataclass(frozen=True)
class Past:
    """A training that K is chosen for: its samples, the weights (d,) it ended in, and its step sizes."""

    problem: Problem
    examples: Examples
    weights: Tensor
    rates: Sequence[float]
    full_batch: bool

    def by_corollary(self, wanted: Wanted, feature_norm: float | None) -> Length:
        """Return ``published_steps`` with the last step size for all, as the paper has it, for mini-batches too."""
        slopes = self._slopes(feature_norm)
        n, bend = len(self.examples), slopes.curvature[1]
        setting = {"rate": self.rates[-1], "smoothness": bend, "gradient": slopes.gradient_bound}
        return self._length("corollary", published_steps(wanted, steps=len(self.rates), n=n, **setting), slopes)

    def by_bound(self, wanted: Wanted, feature_norm: float | None, reference: str) -> Length:
        """Return ``fewest_steps``. Raises Refused for mini-batches, and where rounding alone exceeds the distance."""
        if not self.full_batch:
            raise Refused("steps_from 'bound' is about full-batch gradient descent.", "Train without batch_size.")
        slopes = self._slopes(feature_norm)
        descent = self._descent(slopes, wanted.forgotten, reference)
        return self._length("bound", fewest_steps(descent, wanted.distance()), slopes)

    def _descent(self, slopes: Slopes, forgotten: int, reference: str) -> Descent:
        """Return what the bound will depend on once ``forgotten`` samples have left; K is still to be chosen."""
        problem, n, longest = self.problem, len(self.examples), slopes.longest
        _require_some_left(forgotten, n)
        return Descent(
            rates=self.rates,
            rewound=1,
            samples=n,
            forgotten=forgotten,
            gradient_bound=slopes.gradient_bound,
            curvature=slopes.curvature,
            decay=(float(problem.decay.min()), float(problem.decay.max())),
            step_clip=problem.training.clip,
            reference=reference,
            rounding=() if longest is None else rounding_errors(problem, n, longest, self.rates),
        )

    def _slopes(self, feature_norm: float | None) -> Slopes:
        return Slopes.of(self.problem, self.examples, self.weights, feature_norm)

    def _length(self, rule: str, steps: int, slopes: Slopes) -> Length:
        return Length(steps, {"steps_from": rule, "L": slopes.curvature[1], "G": slopes.gradient_bound})


def _require_some_left(forgotten: int, samples: int) -> None:
    if not 0 < forgotten < samples:
        raise Refused(
            f"forgotten is {forgotten}, of {samples} samples.", "Choose at least 1, and fewer than there are."
        )
