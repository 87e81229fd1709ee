"""How far a rewound gradient descent can end from a retrained one: theorem 3.1 of R2D, and a tighter recursion.

Source: Mu and Klabjan, "Rewind-to-Delete" (arXiv 2409.09778); the paper's full text could not be read while this
was written, theorem 3.1 is as the project's design pages give it. T steps, the last K of them repeated without m of
the n samples; both runs start at the same w_0 with full batches, every sample's gradient is at most G long and
L-Lipschitz, and eta is constant:

    published   ||rewound - retrained|| <= 2 m G / (L n) h(K),  h(K) = ((1 + eta L n/(n-m))^(T-K) - 1) (1 + eta L)^K
    here        the same with                                   h(K) = ((1 + eta L)^(T-K) - 1) (1 + eta L)^K

The proof of the second: compare both runs through the step map of the retained samples, which expands distances by
at most 1 + eta L. Up to step T-K the full gradient differs from the retained one by (m/n) ||grad F_U - grad F_D||
<= 2 m G / n at the same point; after it nothing is added. ``Descent.distance`` is this recursion with varying step
sizes, weight decay and clipping.

With ``Training.sample_clip`` = G, G is true instead of measured: clipping projects each sample's gradient on a ball,
which keeps it L-Lipschitz. For the claim ``proved`` L must be a closed form too.

Deviations from the paper, each with its reason:

* Its noise, sigma = Delta sqrt(2 ln(1.25/delta)) / epsilon, is unproved above epsilon = 1: ``published_sigma`` is for
  comparison, claims use the exact Gaussian curve.
* Its estimate of L is printed inverted: ``lipschitz_ratio`` is ||grad difference|| / ||weight difference||.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from unlearning.heads import Head, head_of
from unlearning.problem import Problem
from unlearning.protocol import Examples, Refused


def published_h(steps: int, rewound: int, *, rate: float, smoothness: float, samples: int, forgotten: int) -> float:
    """h(K) of theorem 3.1 as published; T = ``steps``, K = ``rewound``, n = ``samples``, m = ``forgotten``."""
    _check_counts(steps, rewound, samples, forgotten)
    inflated = rate * smoothness * samples / (samples - forgotten)
    return _grown(inflated, steps - rewound) * _power(rate * smoothness, rewound)


def tight_h(steps: int, rewound: int, rate: float, smoothness: float) -> float:
    """h(K) = ((1 + eta L)^(T-K) - 1) (1 + eta L)^K, never more than the published one (proof above)."""
    _check_counts(steps, rewound, 2, 1)
    return _grown(rate * smoothness, steps - rewound) * _power(rate * smoothness, rewound)


def distance_of(h: float, samples: int, forgotten: int, gradient_bound: float, smoothness: float) -> float:
    """Delta = 2 m G h(K) / (L n)."""
    return 2 * forgotten * gradient_bound * h / (smoothness * samples)


def published_sigma(distance: float, epsilon: float, delta: float) -> float:
    """The paper's noise, Delta sqrt(2 ln(1.25/delta)) / epsilon. For comparison only: no claim is made with it."""
    return distance * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@dataclass(frozen=True)
class Descent:
    """Everything that the distance between a rewound and a retrained model depends on.

    Args:
        rates: eta_0..eta_{T-1}.
        rewound: K.
        samples: n, in the training that the checkpoint comes from.
        forgotten: m, since that training.
        gradient_bound: G, of every sample's data gradient.
        smoothness: L, a Lipschitz constant of every sample's data gradient.
        decay: the least and the largest weight decay of a coordinate, outside the clipping of samples.
        step_clip: C of ``Training.clip``, the bound of a whole step's gradient, decay included.
        reference: ``renormalised`` or ``fixed-denominator``, of the rewound steps and of the retraining alike.
    """

    rates: Sequence[float]
    rewound: int
    samples: int
    forgotten: int
    gradient_bound: float
    smoothness: float
    decay: tuple[float, float] = (0.0, 0.0)
    step_clip: float | None = None
    reference: str = "renormalised"

    def distance(self) -> float:
        """Bound of ||rewound - retrained||: full batches, the same w_0, exact arithmetic. Infinite on overflow.

        d_0 = 0; d_{t+1} = growth_t d_t + eta_t c_t with c_t = c before step T-K and 0 from it on,
        c = 2 m G / n (renormalised) or m G / n (fixed denominator), growth_t = |1 - eta_t lambda| + eta_t L.
        A clipped step projects the whole gradient on a ball, which expands nothing but mixes decay and data:
        growth_t = 1 + eta_t (lambda + L).
        """
        _check_counts(len(self.rates), self.rewound, self.samples, self.forgotten)
        factor = 2.0 if self.reference == "renormalised" else 1.0
        change = factor * self.forgotten * self.gradient_bound / self.samples
        distance = 0.0
        for step, rate in enumerate(self.rates):
            source = rate * change if step < len(self.rates) - self.rewound else 0.0
            distance = self._growth(rate) * distance + source
        return distance

    def ignorance(self) -> float:
        """What holds for any two data sets: the same w_0, and no data gradient longer than G (no step than C)."""
        distance = 0.0
        for rate in self.rates:
            if self.step_clip is not None:
                distance += 2 * rate * self.step_clip
            else:
                distance = self._shrink(rate) * distance + 2 * rate * self.gradient_bound
        return distance

    def require_useful(self) -> float:
        """The distance. Raises Refused when it is vacuous: no smaller than ``ignorance``."""
        distance, ignorance = self.distance(), self.ignorance()
        if self.forgotten and distance >= ignorance:
            raise Refused(
                f"The bound {distance:.3g} is vacuous: any two data sets end within {ignorance:.3g}.",
                "Rewind further back, train shorter or slower, or require no proof.",
            )
        return distance

    def _shrink(self, rate: float) -> float:
        return max(abs(1 - rate * decay) for decay in self.decay)

    def _growth(self, rate: float) -> float:
        if self.step_clip is not None:
            return 1 + rate * (max(self.decay) + self.smoothness)
        return self._shrink(rate) + rate * self.smoothness


def closed_form_smoothness(problem: Problem, feature_norm: float) -> float:
    """L of every sample's data gradient for a linear head on features of norm at most ``feature_norm``.

    ||x||^2 / 2 for softmax, ||x||^2 / 4 for logistic regression, ||x||^2 for the squared losses; the constant feature
    of a bias counts. Raises Refused where the model is no linear head.
    """
    return _head(problem).curve.steepness * feature_norm**2


def require_features_within(problem: Problem, examples: Examples, feature_norm: float) -> None:
    """Raises Refused where some sample's features (the constant 1 of a bias included) are longer than that."""
    longest = float(_head(problem).features(examples.inputs).double().norm(dim=1).max())
    if longest > feature_norm * (1 + 1e-6):
        raise Refused(
            f"A sample's features have norm {longest:.6g}, above feature_norm = {feature_norm:g}.",
            "Scale every sample's features, or declare a larger feature_norm.",
        )


def lipschitz_ratio(gradient_difference: Tensor, weight_difference: Tensor) -> float:
    """||grad F(v) - grad F(w)|| / ||v - w||: a lower bound of L (the paper prints it inverted)."""
    return float(gradient_difference.norm() / weight_difference.norm())


def _head(problem: Problem) -> Head:
    head = head_of(problem)
    if head is None:
        raise Refused(
            "This model is no linear head: its gradients have no Lipschitz constant in closed form.",
            "Put a linear head on a frozen backbone, or require no proof.",
        )
    return head


def _check_counts(steps: int, rewound: int, samples: int, forgotten: int) -> None:
    if not 0 < rewound <= steps:
        raise ValueError(f"K is {rewound} of {steps} steps: choose 1..{steps}")
    if not 0 <= forgotten < samples:
        raise ValueError(f"m is {forgotten} of {samples} samples: at least one must stay")


def _power(growth: float, steps: int) -> float:
    """(1 + growth)^steps, infinite instead of an overflow."""
    exponent = steps * math.log1p(growth)
    return math.exp(exponent) if exponent < 709 else math.inf


def _grown(growth: float, steps: int) -> float:
    """(1 + growth)^steps - 1 without cancellation."""
    exponent = steps * math.log1p(growth)
    return math.expm1(exponent) if exponent < 709 else math.inf
