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

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from unlearning.model.closed_form import require_agreement_at, require_convex_targets
from unlearning.model.curvature import conjugate_gradients
from unlearning.model.linear_head import Affine, Scores, Summed, added_hessian, gamma, hessian
from unlearning.model.problem import Problem
from unlearning.model.tangent import affine_of
from unlearning.types import Examples, Refused

SLACK = 1.0 + 1e-6
NEWTON_STEPS = 100
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
    left: set[float] = set()
    for _, block in examples.blocks():
        targets, _ = problem.apart(block)
        classes = targets.argmax(dim=1) if targets.dim() == 2 and targets.shape[1] > 1 else targets.reshape(-1)
        left |= set(torch.unique(classes).tolist())
        if len(left) >= 2:
            return
    raise Refused(f"{len(left)} of the classes would remain.", "Retire the model instead: two classes must remain.")


def converge(
    problem: Problem, w: Tensor, examples: Examples, tolerance: float, denominator: int | None = None
) -> Tensor:
    """Minimise F_D from w (d,), by Newton's method with conjugate gradients, to ``||grad|| <= tolerance``.

    ``problem`` and w are float64; ``denominator`` is N, default |D|. Steps are halved until the objective falls
    (Armijo); near the minimum, where differences of the objective drown in rounding, until the gradient does. Where
    rounding may be all that is left of the gradient and a step no longer halves it, float64 shows no smaller one: then
    the tolerance counts as reached. How far the weights are from the minimiser is for ``distance_bound`` to say.

    Raises:
        Refused: not strongly convex, or the tolerance is not reached (the message says what was).
    """
    model = require_strongly_convex(problem)
    if problem.dtype != torch.float64 or w.dtype != torch.float64:
        raise ValueError(f"converge works in float64; it was given {problem.dtype} and {w.dtype}.")
    objective = _Objective(model, examples, denominator or len(examples))
    value, gradient = objective.at(w)
    for _ in range(NEWTON_STEPS):
        norm = float(gradient.norm())
        if norm <= tolerance:
            return w
        forcing = min(0.1, norm**0.5)
        step = -conjugate_gradients(objective.products(w), gradient, forcing).x
        there, there_value, fresh = _search(objective, w, step, (value, gradient))
        if float(fresh.norm()) > 0.5 * norm and norm <= objective.rounding_of_few(w):
            return w
        w, value, gradient = there, there_value, fresh
    raise Refused(
        f"Newton's method stopped at a gradient norm of {float(gradient.norm()):.1e}, above {tolerance:.1e}.",
        "Raise converge or weight_decay.",
    )


def distance_bound(problem: Problem, w: Tensor, examples: Examples, denominator: int | None = None) -> float:
    """Return an upper bound on ``||w - argmin F_D||`` at exactly these float64 weights (d,), rounding included.

    The closed form is compared with the problem's own module and loss at w first, on a few samples.

    Raises:
        Refused: not strongly convex, fewer than two classes left, the closed form is not that of this model, or the
            bound is not finite.
    """
    model = require_strongly_convex(problem)
    require_classes(problem, examples)
    if problem.dtype != torch.float64 or w.dtype != torch.float64:
        raise ValueError(f"distance_bound works in float64; it was given {problem.dtype} and {w.dtype}.")
    objective = _Objective(model, examples, denominator or len(examples))
    require_agreement_at(model, w, examples)
    gradient, rounding = objective.trusted(w)
    bound = SLACK * (float(gradient.norm()) + rounding) / problem.training.weight_decay
    if not bound < float("inf"):
        raise Refused("The distance bound is not finite.", "Scale the features down.")
    return bound


def rounding_floor(problem: Problem, w: Tensor, examples: Examples) -> float:
    """Return what ``distance_bound`` cannot fall below near these float64 weights (d,): rounding / weight_decay.

    Raises:
        Refused: not strongly convex.
    """
    objective = _Objective(require_strongly_convex(problem), examples, len(examples))
    return SLACK * objective.trusted(w)[1] / problem.training.weight_decay


def displacements(problem: Problem, w: Tensor, examples: Examples, leaving: Iterable[Tensor]) -> list[float]:
    """Return about how far the minimiser without some samples lies from these float64 weights (d,), near that of all.

    ``leaving`` gives the positions (k,) of the samples, for each answer. An answer is the length of a Newton step with
    the Hessian of all samples: without a few of them it is nearly the same, and all are read once instead of each time.

    Raises:
        Refused: not strongly convex, or no sample would be left.
    """
    model = require_strongly_convex(problem)
    whole = _Objective(model, examples, len(examples))
    product, gradient = whole.products(w), whole.at(w)[1]
    found = []
    for positions in leaving:
        gone = examples.only(positions)
        if len(gone) == len(examples):
            raise Refused("No sample is left.", "Retire the model instead.")
        # (N grad F - k grad F_gone) / (N - k) is the gradient of the objective of those who stay
        share = len(gone) / (len(examples) - len(gone))
        theirs = _Objective(model, gone, len(gone)).at(w)[1]
        step = conjugate_gradients(product, gradient + share * (gradient - theirs), 0.1)
        found.append(float(step.x.norm()))
    return found


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

    def at(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and the gradient (d,)."""
        value, gradient = w.new_zeros(()), torch.zeros_like(w)
        for scores, y in self._blocks():
            z, part = scores.at(w), len(y) / len(self.examples)
            value = value + part * self.model.problem.losses(z, y).mean()
            gradient = gradient + part * (scores.pull(self.model.curve.residual(z, y)) / len(y))
        return self.share * value + 0.5 * self.decay * w.dot(w), self.share * gradient + self.decay * w

    def products(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        data = self._data_products(w)

        def product(v: Tensor) -> Tensor:
            return self.share * data(v) + self.decay * v

        return product

    def _data_products(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        if self._kept is None:
            written_out = added_hessian(self.model.curve, self._blocks(), w)
            return lambda v: written_out @ v
        ((scores, y),) = self._kept
        return hessian(self.model.curve, scores, w, y)

    def trusted(self, w: Tensor) -> tuple[Tensor, float]:
        """Return the gradient, and the bound on ||computed gradient - gradient|| that the module derives."""
        return self._trusted(w, (scores.summed(w, y) for scores, y in self._blocks()), len(self.examples))

    def rounding_of_few(self, w: Tensor) -> float:
        """Return that bound as if the first samples were all, where all are dear: it tells when to stop, no more."""
        scores, y = next(iter(self._blocks()))
        few = y[: scores.cheap]
        return self._trusted(w, [scores.summed(w, few)], len(few))[1]

    def _trusted(self, w: Tensor, found: Iterable[Summed], count: int) -> tuple[Tensor, float]:
        total, carried, length, terms, added = torch.zeros_like(w), 0.0, 0.0, 0, -1
        for each in found:
            total = total + each.gradient
            carried, length = carried + each.carried, length + each.size
            terms, added = max(terms, each.terms), added + 1
        terms += added  # a summand passes through its own block's sum, and through the sum of the blocks
        share = self.share / count
        size = share * length + self.decay * float(w.norm())
        return share * total + self.decay * w, share * carried + gamma(terms + 4) * size

    def _blocks(self) -> Iterable[tuple[Scores, Tensor]]:
        return self._scored() if self._kept is None else self._kept

    def _scored(self) -> Iterator[tuple[Scores, Tensor]]:
        for inputs, targets in self.examples.blocks():
            require_convex_targets(self.model, targets)
            yield self.model.on(self.model.features(inputs)), targets


def _search(
    objective: _Objective, w: Tensor, step: Tensor, here: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next weights with their value and gradient, or where none is better, these."""
    value, slope, norm = float(here[0]), float(here[1].dot(step)), float(here[1].norm())
    length = 1.0
    for _ in range(40):
        trial = w + length * step
        fresh, gradient = objective.at(trial)
        falls = float(fresh) <= value + 1e-4 * length * slope
        if falls or float(gradient.norm()) <= (1.0 - 0.5 * length) * norm:
            return trial, fresh, gradient
        length /= 2.0
    return w, *here
