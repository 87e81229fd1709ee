"""How far a rewound gradient descent can end from a retrained one: theorem 3.1 of R2D, and a tighter recursion.

Source: Mu and Klabjan, "Rewind-to-Delete" (arXiv 2409.09778), theorem 3.1 and its proof (appendix B). T steps, the
last K of them repeated without m of the n samples; both runs start at the same w_0 with full batches, every sample's
gradient is at most G long and L-Lipschitz, and eta is constant:

    published   ||rewound - retrained|| <= 2 m G / (L n) h(K),  h(K) = ((1 + eta L n/(n-m))^(T-K) - 1) (1 + eta L)^K
    here        the same with                                   h(K) = ((1 + eta L)^(T-K) - 1) (1 + eta L)^K

The proof of the second: compare both runs through the step map of the retained samples, which expands distances by
at most 1 + eta L. Up to step T-K the full gradient differs from the retained one by (m/n) ||grad F_U - grad F_D||
<= 2 m G / n at the same point; after it the sum stays. ``Descent.distance`` is this recursion with varying step
sizes, weight decay and clipping.

For the claim ``proved`` neither constant may be measured. L has a closed form for linear heads. G is
``Training.sample_clip``, which projects each sample's gradient on a ball and so keeps it L-Lipschitz, or follows from
the loss (``closed_form_gradient_bound``). For a linear head without clipped gradients (or with a single
output) the data loss is convex, and the step map shrinks instead of expanding: its derivative I - eta (Lambda + H) is
symmetric with 0 <= H <= L, so growth = max(|1 - eta lambda|, |1 - eta (lambda + L)|). Theorem 3.1, which is about
nonconvex losses, does not use that; without it the bound says little (docs/methods.md).

Deviations from the paper, each with its reason:

* Its noise, noise_std = Delta sqrt(2 ln(1.25/delta)) / epsilon, is unproved above epsilon = 1:
  claims use the exact Gaussian curve.
* Its estimate of L is printed inverted: it should be ||grad difference|| / ||weight difference||. It is
  that of a mean gradient as well; the theorem asks for every sample's, which can be n times as large, and
  ``measured_constants`` measures that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from typing import ClassVar, cast

from unlearning.accounting.certificate import Constant
from unlearning.bounds.gradients import admitted, head_required, measured_constants, proved_constants, rounding_errors
from unlearning.bounds.published import RAISE, SAMPLED, require_below, rounded_up
from unlearning.model.closed_form import require_agreement_at
from unlearning.model.descent.ingredients import require_plain
from unlearning.model.linear_head import head_of
from unlearning.model.method import Bound
from unlearning.model.problem import Problem
from unlearning.types import Examples, Forgotten, Json, Refused, State


@dataclass(frozen=True)
class Descent:
    """Everything that the distance between a rewound and a retrained model depends on.

    Args:
        rates: eta_0..eta_{T-1}.
        rewound: K.
        samples: n, in the training that the checkpoint comes from.
        forgotten: m, since that training.
        gradient_bound: G, of every sample's data gradient.
        curvature: between what the data loss bends, least and largest: (-L, L) for L-Lipschitz gradients (clipped or
            not), (0, L) where they are those of a convex loss for any set of samples.
        decay: the least and the largest weight decay of a coordinate, outside the clipping of samples.
        step_clip: C of ``Training.clip``, the bound of a whole step's gradient, decay included.
        reference: ``renormalised`` or ``fixed-denominator``, of the rewound steps and of the retraining alike.
        rounding: how far a computed step can end from the exact one, for each step; () is exact arithmetic.
    """

    rates: Sequence[float]
    rewound: int
    samples: int
    forgotten: int
    gradient_bound: float
    curvature: tuple[float, float]
    decay: tuple[float, float] = (0.0, 0.0)
    step_clip: float | None = None
    reference: str = "renormalised"
    rounding: Sequence[float] = ()

    def distance(self) -> float:
        """Return the bound of ||rewound - retrained||: full batches, the same w_0. Infinite on overflow.

        d_0 = 0; d_{t+1} = growth_t d_t + eta_t c_t + 2 rounding_t with c_t = c before step T-K and 0 from it on,
        c = 2 m G / n (renormalised) or m G / n (fixed denominator), and growth_t = max |1 - eta_t (lambda + h)| over
        the curvatures h: |1 - eta_t lambda| + eta_t L for (-L, L). A clipped step projects the whole gradient on a
        ball, which does not expand but mixes decay and data: growth_t = 1 + eta_t (lambda + L).
        """
        _check_counts(len(self.rates), self.rewound, self.samples, self.forgotten)
        factor = 2.0 if self.reference == "renormalised" else 1.0
        change = factor * self.forgotten * self.gradient_bound / self.samples
        if not self.forgotten:
            return 0.0
        distance = 0.0
        for step, (rate, rounding) in enumerate(zip_longest(self.rates, self.rounding, fillvalue=0.0)):
            source = rate * change if step < len(self.rates) - self.rewound else 0.0
            distance = self._growth(rate) * distance + source + 2 * rounding
        return distance

    def ignorance(self) -> float:
        """Return the bound for any two data sets: the same w_0, no data gradient longer than G (no step than C)."""
        distance = 0.0
        for rate in self.rates:
            if self.step_clip is not None:
                distance += 2 * rate * self.step_clip
            else:
                shrink = max(abs(1 - rate * decay) for decay in self.decay)
                distance = shrink * distance + 2 * rate * self.gradient_bound
        return distance

    def require_useful(self) -> float:
        """Return the distance. Raises Refused when it is vacuous: no smaller than ``ignorance``."""
        distance, ignorance = self.distance(), self.ignorance()
        if self.forgotten and distance >= ignorance:
            raise Refused(
                f"The bound {distance:.3g} is vacuous: any two data sets end within {ignorance:.3g}.",
                "Rewind further back, train shorter or slower, or require no proof.",
            )
        return distance

    def _growth(self, rate: float) -> float:
        if self.step_clip is not None:
            return 1 + rate * (max(self.decay) + max(self.curvature))
        ends = (min(self.decay) + min(self.curvature), max(self.decay) + max(self.curvature))
        return max(abs(1 - rate * bend) for bend in ends)


@dataclass(frozen=True)
class RewoundEstimate(Bound):
    """The ``estimated`` bound of a rewind, with L and G as they were measured. ``reference`` is the method's option."""

    assumptions: ClassVar[tuple[str, ...]] = (
        "The reference is the same full-batch training, from the same start, on the retained samples.",
    )
    reference: str

    def require_possible(self, problem: Problem) -> None:
        """Raise Refused for a training of more than plain gradient steps: the recursion is about those alone."""
        require_plain(problem.ingredients, "The bound of a rewind", "Ask for the guarantee none")

    def constants(self, problem: Problem, examples: Examples, state: State) -> tuple[Constant, ...]:
        """Measure L and G on all samples, at the start, the checkpoint and the trained weights."""
        work, clip = problem.cast(state.weights.dtype), problem.training.sample_clip
        points = (work.initial(), state.tensors["checkpoint"].to(problem.device), state.weights.to(problem.device))
        smoothness, longest = measured_constants(work, examples, points)
        origin = "closed form of a linear head at the longest features of a sample, rounded up to one digit"
        if head_of(work) is None:
            origin = f"largest spectral norm of a sample's data Hessian, {SAMPLED}"
        enforced = Constant("G", clip, "sample_clip of the training") if clip is not None else None
        return (
            Constant("L", rounded_up(smoothness), origin),
            enforced or Constant("G", rounded_up(longest), f"longest data gradient of a sample, {SAMPLED}"),
        )

    def descent(self, problem: Problem, state: State, constants: Mapping[str, float]) -> Descent:
        """Return what the bound depends on at ``state``. Raises Refused for mini-batches."""
        convex_loss = head_of(problem) is not None and problem.training.sample_clip is None
        curvature = (0.0 if convex_loss else -constants["L"], constants["L"])
        return _descent(problem, state, self.reference, curvature, constants["G"])

    def require_useful(
        self, problem: Problem, examples: Examples, state: State, max_distance: float, constants: Mapping[str, float]
    ) -> dict[str, Json]:
        """Report ``bound_of_one_sample``, and how many may be forgotten in all: ``samples_within_cap``, and
        ``people_within_cap``, in any order.

        Raises:
            Refused: the bound is vacuous, or one forgotten sample does not fit under ``max_distance``.
        """
        descent = self.descent(problem, state, constants)
        one = replace(descent, forgotten=1)
        first = one.require_useful()
        require_below(max_distance, one.ignorance(), "the trainings on any two data sets")
        if first > max_distance:
            what = f"The bound for one forgotten sample is {first:.3g}, above max_distance {max_distance:g}."
            raise Refused(what, RAISE)
        most = _most(descent, max_distance)
        people = people_within(examples.subjects, most)
        return {"bound_of_one_sample": first, "samples_within_cap": most, "people_within_cap": people}

    def distance(
        self, problem: Problem, forgotten: Forgotten, retain: Examples | None, constants: Mapping[str, float]
    ) -> float:
        """Return the bound for all deletions so far."""
        if not forgotten.state.facts["forgotten"]:
            return 0.0
        return self.descent(problem, forgotten.state, constants).require_useful()


@dataclass(frozen=True)
class RewoundProof(RewoundEstimate):
    """The ``proved`` bound of a rewind: constants that need no data, and the rounding of both runs.

    It bounds the distance to the same training (w_0, T steps, clipping) on the retained samples. ``source`` and
    ``feature_norm`` are the method's options.
    """

    assumptions: ClassVar[tuple[str, ...]] = (
        "The reference is the same training (start, number of full-batch steps, step sizes, clipping) on the retained "
        "samples, in exact arithmetic; the bound of a sample's features was declared, not fitted.",
    )
    checked: ClassVar[tuple[str, ...]] = (
        "Every sample's features were within the bound when the model was registered.",
    )
    source: str
    feature_norm: float | None

    def require_possible(self, problem: Problem) -> None:
        """Raise Refused where a condition of the proof is missing."""
        super().require_possible(problem)
        longest = self._longest(problem, self.source)
        size, count = problem.training.step_size, len(problem.recipe.samples.ids)
        if size is not None and size < count:
            raise Refused("The bound holds for full-batch gradient descent.", "Train without batch_size.")
        proved_constants(problem, longest)

    def constants(self, problem: Problem, examples: Examples, state: State) -> tuple[Constant, ...]:
        """Return no figure: this proof needs no measurement."""
        return ()

    def descent(self, problem: Problem, state: State, constants: Mapping[str, float]) -> Descent:
        """Return what the bound depends on at ``state``, rounding included. Raises Refused where a condition is
        missing."""
        work = problem.cast(state.weights.dtype)
        longest = admitted(self._longest(problem, state.facts["source"]))
        curvature, gradient_bound = proved_constants(work, longest)
        descent = _descent(work, state, self.reference, curvature, gradient_bound)
        return replace(descent, rounding=rounding_errors(work, descent.samples, longest, descent.rates))

    def distance(
        self, problem: Problem, forgotten: Forgotten, retain: Examples | None, constants: Mapping[str, float]
    ) -> float:
        """Return the bound, once the closed form agrees with the module at these weights."""
        weights, state = forgotten.state.weights, forgotten.state
        if not state.facts["forgotten"]:
            return 0.0
        if retain is None:
            raise ValueError("The guarantee proved reads the retained samples; they were not loaded.")
        work = problem.double()
        require_agreement_at(head_required(work), weights.to(work.device, work.dtype), retain)
        return super().distance(problem, forgotten, retain, constants)

    def _longest(self, problem: Problem, source: Json) -> float:
        if self.feature_norm is None:
            raise Refused("No bound of the features' norm is declared.", "Set the method's option feature_norm.")
        if source != "checkpoint" or problem.recipe.weights is not None:
            raise Refused("The proof needs this recipe's own checkpoint.", "Train here, with source=checkpoint.")
        return self.feature_norm


def people_within(subjects: Iterable[Sequence[str]], samples: int) -> int:
    """Return how many people may leave, in any order, before more than ``samples`` samples have left.

    ``subjects`` gives the persons of each sample. Those with the most samples are taken to leave first; a sample of two
    people is counted for both, so that the number is never too large.
    """
    counts = Counter(person for names in subjects for person in names)
    return sum(gone <= samples for gone in accumulate(sorted(counts.values(), reverse=True)))


def _descent(
    problem: Problem, state: State, reference: str, curvature: tuple[float, float], gradient_bound: float
) -> Descent:
    if not state.facts["full_batch"]:
        raise Refused("The bound holds for full-batch gradient descent.", "Train without batch_size.")
    rewound, samples, forgotten = (cast(int, state.facts[name]) for name in ("rewound", "samples", "forgotten"))
    return Descent(
        rates=state.tensors["rates"].tolist(),
        rewound=rewound,
        samples=samples,
        forgotten=forgotten,
        gradient_bound=gradient_bound,
        curvature=curvature,
        decay=(float(problem.decay.min()), float(problem.decay.max())),
        step_clip=problem.training.clip,
        reference=reference,
    )


def _most(descent: Descent, max_distance: float) -> int:
    """Return the most samples in all with a bound of at most ``max_distance``: it grows with their number."""
    low, high = 1, descent.samples - 1
    while low < high:
        middle = (low + high + 1) // 2
        if replace(descent, forgotten=middle).distance() <= max_distance:
            low = middle
        else:
            high = middle - 1
    return low


def _check_counts(steps: int, rewound: int, samples: int, forgotten: int) -> None:
    if not 0 < rewound <= steps:
        raise ValueError(f"K is {rewound} of {steps} steps: choose 1..{steps}")
    if not 0 <= forgotten < samples:
        raise ValueError(f"m is {forgotten} of {samples} samples: at least one must stay")
