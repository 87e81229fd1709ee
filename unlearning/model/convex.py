"""Strongly convex problems: the unique minimiser, and how far given weights can be from it.

The objective is ``F_D(w) = (1/N) sum_{i in D} l_i(w) + (lambda/2) ||w||^2`` with N = |D| (renormalised) or the full
training's count (fixed denominator).

**Distance.** F_D is lambda-strongly convex when every l_i is convex and every coordinate is decayed, so for its
minimiser w*: ``lambda ||w - w*||^2 <= (grad F_D(w) - grad F_D(w*)) . (w - w*) <= ||grad F_D(w)|| ||w - w*||``, so
``||w - w*|| <= ||grad F_D(w)|| / lambda``.

**Rounding.** The gradient is computed in float64 with round-off u = 2^-53; gamma_k = k u/(1 - k u) bounds the error of
any summation order of k products (Higham, Accuracy and Stability, ch. 3). With features phi_i, scores z_i = W phi_i,
residuals r_i = dl/dz and L_i a bound on the Hessian of l_i in z (for soft labels half the sum of their row):
``||z^_i - z_i|| <= gamma_{D+1} || |W| |phi_i| || =: d_i``, so ``||r^_i - r_i|| <= L_i d_i + u e_i =: t_i`` where e_i
(heads.Curve.rounding) covers the evaluation of the residual at z^_i; then
``||g^ - g|| <= (1/N) sum t_i ||phi_i|| + gamma_{n+4} ((1/N) sum (||r^_i|| + t_i) ||phi_i|| + lambda ||w||)``.
The sums of the bound itself are of positive terms; the factor 1 + 1e-6 covers their rounding and that of the norm.
Features are data: where a frozen backbone computes them, its float64 output defines the reference. ``Summed`` holds
the three sums; those of a tangent are in ``tangent``, with the Frobenius norm of J_i in place of ||phi_i||.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from unlearning.model.closed_form import require_agreement_at, require_convex_targets
from unlearning.model.curvature import conjugate_gradients
from unlearning.model.linear_head import Affine, FeatureScores, Scores, Summed, added_hessian, gamma, hessian
from unlearning.model.problem import Problem
from unlearning.model.tangent import affine_of
from unlearning.types import Examples, Refused

SLACK = 1.0 + 1e-6
NEWTON_STEPS = 100
TIGHTEN = (2.0, 64.0, 1024.0)
"""``approach`` goes on until the gradient is that of the distance over these, one after the other. Rounding takes at
most a third of the distance, which registration requires"""
SINGLE = 1e-5
"""the least relative residual that a solve in float32 is asked for"""
SINGLE_PRODUCTS = 250
"""after so many it gains no more by its speed than it loses by its rounding"""
ROWS_A_WEIGHT = 32
"""rows of a sampled Hessian for each weight: it is then within about a third of the whole one"""
WHITELIST = (
    "one nn.Linear, alone or at the end of an nn.Sequential without other trained parameters, under cross_entropy, "
    "binary_logistic, squared_error or squared_hinge; or an unlearning.features.Tangent, with the same losses"
)


def require_strongly_convex(problem: Problem) -> Affine:
    """Return the problem's linear head or tangent, if its objective is strongly convex in every coordinate.

    Raises:
        Refused: the model or loss is not on the whitelist, a coordinate is not decayed, samples are clipped.
    """
    model = affine_of(problem)
    if model is None:
        raise Refused("This model is not known to be convex.", f"Known are: {WHITELIST}.")
    if problem.training.undecayed:
        raise Refused(
            f"Weight decay leaves out {', '.join(problem.training.undecayed)}: the objective is not strongly convex.",
            "Decay every parameter, or append a constant feature instead of a bias.",
        )
    if not problem.training.weight_decay > 0.0:
        raise Refused("weight_decay is 0: the objective is not strongly convex.", "Set weight_decay above 0.")
    if problem.training.sample_clip is not None:
        raise Refused(
            "sample_clip changes the gradient into one that no loss has.", "Leave sample_clip out, or use rewind."
        )
    return model


def require_classes(problem: Problem, examples: Examples) -> None:
    """Raise Refused where a classification has fewer than two classes left."""
    model = affine_of(problem)
    if model is None or not model.curve.classifies:
        return
    first: Tensor | None = None
    for _, block in examples.blocks():
        targets, _ = problem.apart(block)
        classes = targets.argmax(dim=1) if targets.dim() == 2 and targets.shape[1] > 1 else targets.reshape(-1)
        first = classes[:1] if first is None else first
        if bool((classes != first).any()):
            return
    left = 0 if first is None else len(first)
    raise Refused(f"{left} of the classes would remain.", "Retire the model instead: two classes must remain.")


def converge(
    problem: Problem, w: Tensor, examples: Examples, tolerance: float, denominator: int | None = None
) -> Tensor:
    """Minimise F_D from w (d,), by Newton's method with conjugate gradients, to ``||grad|| <= tolerance``.

    ``problem`` and w are float64; ``denominator`` is N, default |D|. Steps are halved until the gradient or the
    objective falls (Armijo). Where rounding may be all that is left of the gradient and a step no longer halves it,
    float64 shows no smaller one: then the tolerance counts as reached. How far the weights are from the minimiser is
    for ``distance_bound`` to say.

    Raises:
        Refused: not strongly convex, or the tolerance is not reached (the message says what was).
    """
    objective = _objective(problem, w, examples, denominator)
    return _minimised(objective, w, tolerance, objective.slope)[0]


def approach(
    problem: Problem, w: Tensor, examples: Examples, distance: float, denominator: int | None = None
) -> tuple[Tensor, float]:
    """Move w (d,) towards the minimiser until ``distance_bound`` is at most ``distance``; return both.

    Where the bound stays above, it is that of the last weights that were reached. Near the minimiser one step does:
    then the samples are read for a gradient, for the products of a solve, and for the bound.

    Raises:
        Refused: as ``distance_bound`` does.
    """
    objective = _objective(problem, w, examples, denominator)
    require_classes(problem, examples)
    at, bound = objective.trusted if objective.trusted_is_cheap else objective.slope, math.inf
    for tighter in TIGHTEN:
        try:
            w, here = _minimised(objective, w, objective.decay * distance / tighter, at)
        except Refused:
            break
        bound = objective.bound(w, here)
        if bound <= distance:
            break
    if bound == math.inf:
        bound = objective.bound(w, objective.trusted(w))
    require_agreement_at(objective.model, w, examples)
    return w, bound


def distance_bound(problem: Problem, w: Tensor, examples: Examples, denominator: int | None = None) -> float:
    """Return an upper bound on ``||w - argmin F_D||`` at exactly these float64 weights (d,), rounding included.

    The closed form is compared with the problem's own module and loss at w first, on a few samples.

    Raises:
        Refused: not strongly convex, fewer than two classes left, the closed form is not that of this model, or the
            bound is not finite.
    """
    objective = _objective(problem, w, examples, denominator)
    require_classes(problem, examples)
    require_agreement_at(objective.model, w, examples)
    return objective.bound(w, objective.trusted(w))


def rounding_floor(problem: Problem, w: Tensor, examples: Examples) -> float:
    """Return what ``distance_bound`` cannot fall below near these float64 weights (d,): rounding / weight_decay.

    Raises:
        Refused: not strongly convex.
    """
    objective = _Objective(require_strongly_convex(problem), examples, len(examples))
    return SLACK * objective.trusted(w).rounding / problem.training.weight_decay


def displacements(problem: Problem, w: Tensor, examples: Examples, leaving: Iterable[Tensor]) -> list[float]:
    """Return about how far the minimiser without some samples lies from these float64 weights (d,), near that of all.

    ``leaving`` gives the positions (k,) of the samples, for each answer. An answer is the length of a Newton step with
    the Hessian of all samples: without a few of them it is nearly the same, and all are read once instead of each time.

    Raises:
        Refused: not strongly convex, or no sample would be left.
    """
    model = require_strongly_convex(problem)
    whole = _Objective(model, examples, len(examples))
    product, gradient = whole.products(w), whole.slope(w).gradient
    found = []
    for positions in leaving:
        gone = examples.only(positions)
        if len(gone) == len(examples):
            raise Refused("No sample is left.", "Retire the model instead.")
        # (N grad F - k grad F_gone) / (N - k) is the gradient of the objective of those who stay
        share = len(gone) / (len(examples) - len(gone))
        theirs = _Objective(model, gone, len(gone)).slope(w).gradient
        step = conjugate_gradients(product, gradient + share * (gradient - theirs), 0.1)
        found.append(float(step.x.norm()))
    return found


class Slope(NamedTuple):
    """The gradient (d,) of F_D at some weights, and a bound on its rounding; infinite where none was computed."""

    gradient: Tensor
    rounding: float = math.inf


class _Objective:
    """F_D over samples.

    Of samples in memory, the features or the passes through a network are computed once. Others are read by blocks,
    all of them at each call.
    """

    def __init__(self, model: Affine, examples: Examples, denominator: int) -> None:
        if len(examples) == 0:
            raise Refused("No sample is left.", "Retire the model instead.")
        self.model, self.examples = model, examples
        self.share = len(examples) / denominator
        self.decay = model.problem.training.weight_decay
        self._kept = list(self._scored()) if examples.held else None

    @property
    def trusted_is_cheap(self) -> bool:
        """Whether ``trusted`` costs about as much as ``slope``."""
        return self._kept is None or all(scores.cheap >= len(y) for scores, y in self._kept)

    def value(self, w: Tensor) -> float:
        value = 0.0
        for scores, y in self._blocks():
            value += len(y) / len(self.examples) * float(self.model.problem.losses(scores.at(w), y).mean())
        return self.share * value + 0.5 * self.decay * float(w.dot(w))

    def slope(self, w: Tensor) -> Slope:
        total = torch.zeros_like(w)
        for scores, y in self._blocks():
            total += scores.gradient(w, y)
        return Slope(self.share / len(self.examples) * total + self.decay * w)

    def products(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        return self._decayed(self._data_products(w))

    def step(self, w: Tensor, gradient: Tensor, residual: float, *, quick: bool) -> Tensor:
        """Return ``-H^{-1} gradient`` (d,) to a relative ``residual``, at w. ``quick``: nearly, by float32."""
        if quick and self._single is not None:
            norm, (scores, y) = float(gradient.norm()), self._single
            product = self._decayed(hessian(self._single_model.curve, scores, w.float(), y))
            side, within = (gradient / norm).float(), max(residual, SINGLE)
            solved = conjugate_gradients(product, side, within, SINGLE_PRODUCTS, precondition=self._factor(w))
            step = -norm * solved.x.to(w.dtype)
            if bool(step.dot(gradient) < 0.0):
                return step
        return -conjugate_gradients(self.products(w), gradient, residual).x

    def trusted(self, w: Tensor) -> Slope:
        """Return the gradient, and the bound on ||computed gradient - gradient|| that the module derives."""
        return self._trusted(w, (scores.summed(w, y) for scores, y in self._blocks()), len(self.examples))

    def bound(self, w: Tensor, here: Slope) -> float:
        """Return what ``distance_bound`` says at w, where the gradient is that of ``here``. Raises Refused."""
        gradient, rounding = here if here.rounding < math.inf else self.trusted(w)
        bound = SLACK * (float(gradient.norm()) + rounding) / self.decay
        if not bound < float("inf"):
            raise Refused("The distance bound is not finite.", "Scale the features down.")
        return bound

    def rounding_of_few(self, w: Tensor) -> float:
        """Return that bound as if the first samples were all, where all are dear: it tells when to stop, no more."""
        scores, y = next(iter(self._blocks()))
        few = y[: scores.cheap]
        return self._trusted(w, [scores.summed(w, few)], len(few)).rounding

    def _trusted(self, w: Tensor, found: Iterable[Summed], count: int) -> Slope:
        total, carried, length, terms, added = torch.zeros_like(w), 0.0, 0.0, 0, -1
        for each in found:
            total = total + each.gradient
            carried, length = carried + each.carried, length + each.size
            terms, added = max(terms, each.terms), added + 1
        terms += added  # a summand passes through its own block's sum, and through the sum of the blocks
        share = self.share / count
        size = share * length + self.decay * float(w.norm())
        return Slope(share * total + self.decay * w, share * carried + gamma(terms + 4) * size)

    def _data_products(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        if self._kept is None:
            written_out = added_hessian(self.model.curve, self._blocks(), w)
            return lambda v: written_out @ v
        ((scores, y),) = self._kept
        return hessian(self.model.curve, scores, w, y)

    def _decayed(self, data: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda v: self.share * data(v) + self.decay * v

    def _factor(self, w: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return v (d,) -> v times about the inverse Hessian, from some rows of a narrow head; None: of no other.

        It makes a solve short where columns differ in scale or are correlated. Nothing is claimed by it.
        """
        if self._kept is None:
            return None
        ((scores, y),) = self._kept
        if not isinstance(scores, FeatureScores) or len(w) ** 2 > len(y):
            return None
        every = max(1, len(y) // (ROWS_A_WEIGHT * len(w)))
        some = FeatureScores(scores.head, scores.phi[::every])
        hessian = self.share * added_hessian(self.model.curve, [(some, y[::every])], w)
        hessian.diagonal().add_(self.decay)
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if int(failed):
            return None
        return lambda v: torch.cholesky_solve(v.to(factor.dtype).unsqueeze(1), factor).squeeze(1).to(v.dtype)

    @cached_property
    def _single(self) -> tuple[Scores, Tensor] | None:
        """The scores in float32 of samples in memory, and their targets."""
        if self._kept is None:
            return None
        ((scores, y),) = self._kept
        features = scores.phi if isinstance(scores, FeatureScores) else self.model.features(self.examples.inputs)
        return self._single_model.on(features.float() if features.dtype.is_floating_point else features), y

    @cached_property
    def _single_model(self) -> Affine:
        return require_strongly_convex(self.model.problem.cast(torch.float32))

    def _blocks(self) -> Iterable[tuple[Scores, Tensor]]:
        return self._scored() if self._kept is None else self._kept

    def _scored(self) -> Iterator[tuple[Scores, Tensor]]:
        for inputs, targets in self.examples.blocks():
            require_convex_targets(self.model, targets)
            yield self.model.on(self.model.features(inputs)), targets


def _objective(problem: Problem, w: Tensor, examples: Examples, denominator: int | None) -> _Objective:
    model = require_strongly_convex(problem)
    if problem.dtype != torch.float64 or w.dtype != torch.float64:
        raise ValueError(f"Minimisers are computed in float64; the problem is {problem.dtype}, the weights {w.dtype}.")
    return _Objective(model, examples, denominator or len(examples))


def _minimised(
    objective: _Objective, w: Tensor, tolerance: float, at: Callable[[Tensor], Slope]
) -> tuple[Tensor, Slope]:
    """Do what ``converge`` does; return the slope there too. ``at`` gives it at weights that a step led to."""
    here, quick = objective.slope(w), True
    for _ in range(NEWTON_STEPS):
        norm = float(here.gradient.norm())
        if norm <= tolerance:
            return w, here
        # what a step leaves beside its residual falls with the square of the gradient: so this may be the last one
        residual = min(0.1, 0.5 * tolerance / norm if norm**2 <= tolerance else norm**0.5)
        step = objective.step(w, here.gradient, residual, quick=quick)
        there, slope = _search(objective, w, step, here, at)
        halved = float(slope.gradient.norm()) <= 0.5 * norm
        if not halved and not quick and norm <= objective.rounding_of_few(w):
            return w, here
        quick = halved or not quick  # after a step in float32 that was of little use comes one in float64
        w, here = there, slope
    raise Refused(
        f"Newton's method stopped at a gradient norm of {float(here.gradient.norm()):.1e}, above {tolerance:.1e}.",
        "Raise converge or weight_decay.",
    )


def _search(
    objective: _Objective, w: Tensor, step: Tensor, here: Slope, at: Callable[[Tensor], Slope]
) -> tuple[Tensor, Slope]:
    """Return the next weights with their slope, or where none is better, these."""
    norm, falling, value = float(here.gradient.norm()), float(here.gradient.dot(step)), None
    length = 1.0
    for _ in range(40):
        trial = w + length * step
        there = at(trial)
        if float(there.gradient.norm()) <= (1.0 - 0.5 * length) * norm:
            return trial, there
        value = objective.value(w) if value is None else value
        if objective.value(trial) <= value + 1e-4 * length * falling:
            return trial, there
        length /= 2.0
    return w, here
