"""How far a damped Newton step in a ball can end from a retrained model: the bound of CNS.

Source: Zhang, Dong, Wang, Li, "Towards Certified Unlearning for Deep Neural Networks" (ICML 2024, arXiv 2408.00920).
The result is proved here again, because it is short and the paper's constants are named differently in places.

Let w and v lie in the ball of radius C, v the retrained model with ||grad F_D(v)|| <= G; let the Hessian of F_D be
M-Lipschitz on the ball, its least eigenvalue there at least mu, and mu + lambda > 0. The step solves
``(H(w) + lambda I) x = grad F_D(w)`` up to a residual r. Then, with ``u = w - v`` and ||u|| <= 2C,

    w - x - v = (H(w) + lambda I)^{-1} [ (H(w) - int_0^1 H(v + t u) dt) u + lambda u - grad F_D(v) + r ]
    ||w - x - v|| <= (M ||u||^2 / 2 + lambda ||u|| + G + ||r||) / (lambda + mu)
                  <= (2 C (M C + lambda) + G + ||r||) / (lambda + mu)

and projecting w - x on the ball, where v lies, brings it no farther from v. It holds for every update in turn,
because w only has to lie in the ball.

C and lambda are chosen. M, mu and G are measured at a few points: lower bounds of the truth (an upper one for mu), so
that a claim with them is ``estimated``. They are rounded to one significant digit, away from the flattering side: they
are published, and were measured on all people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from unlearning.accounting.certificate import Constant
from unlearning.bounds.published import RAISE, SAMPLED, require_below, rounded_up
from unlearning.model.curvature import spectral_norm
from unlearning.model.method import Bound
from unlearning.model.objective import Objective, Product
from unlearning.model.problem import Problem
from unlearning.types import Examples, Forgotten, Json, Refused, State

PRODUCTS = 40
POINTS = 4


@dataclass(frozen=True)
class Constrained:
    """The constants of the bound above; ``residual`` is ||r||."""

    radius: float
    damping: float
    smallest_eigenvalue: float
    hessian_lipschitz: float
    gradient_norm: float
    residual: float = 0.0

    def distance(self) -> float:
        """Return Delta. Infinite where the damped Hessian may be singular."""
        curved = self.damping + self.smallest_eigenvalue
        if curved <= 0:
            return math.inf
        spread = 2 * self.radius * (self.hessian_lipschitz * self.radius + self.damping)
        return (spread + self.gradient_norm + self.residual) / curved

    def require_useful(self) -> float:
        """Return the distance. Raises Refused where it is vacuous: any two points of the ball lie within 2 C."""
        distance = self.distance()
        if not distance < 2 * self.radius:
            raise Refused(
                f"The bound {distance:.3g} is vacuous: any two models in the ball of radius {self.radius:g} lie within "
                f"{2 * self.radius:.3g}.",
                "Lower damping, raise weight_decay, or claim nothing: ask for the guarantee none.",
            )
        return distance


@dataclass(frozen=True)
class Ball(Bound):
    """The ``estimated`` bound of a damped Newton step in a ball.

    ``radius`` (C) and ``damping`` (lambda) are the method's options. ``gradient_norm`` is where its steps may stop.
    """

    assumptions: ClassVar[tuple[str, ...]] = ("The trained and the retrained model lie in the ball of radius C.",)
    radius: float | None
    damping: float
    gradient_norm: float | None

    origin: ClassVar[str] = "option radius: both models are taken to lie in this ball"

    def require_possible(self, problem: Problem) -> None:
        """Raise Refused where no radius is given, or the training is not as the bound needs it."""
        self._radius()
        self.require_training(problem)

    def require_training(self, problem: Problem) -> None:
        """Accept every training: that both models lie in the ball is assumed."""

    def constants(self, problem: Problem, examples: Examples, state: State) -> tuple[Constant, ...]:
        """Return mu, M and G as measured on all samples, and C and lambda, which are chosen."""
        work, radius = problem.cast(state.weights.dtype), self._radius()
        smallest, rough, gradient = measured(work, examples, state.weights.to(work.device), radius)
        return (
            Constant("C", radius, self.origin),
            Constant("lambda", self.damping, "option damping"),
            Constant("mu", smallest, f"least eigenvalue of the objective's Hessian in the ball, {SAMPLED}"),
            Constant("M", rough, f"Lipschitz constant of the Hessian in the ball, {SAMPLED}"),
            Constant(
                "G",
                gradient,
                "gradient norm that the training left on everyone, rounded up to one digit; a "
                "retraining is taken to leave no more",
            ),
        )

    def require_useful(
        self, problem: Problem, examples: Examples, state: State, max_distance: float, constants: Mapping[str, float]
    ) -> dict[str, Json]:
        """Report the ``bound`` of an update that solves exactly.

        Raises:
            Refused: any two models in the ball are as close as the bound or as ``max_distance``, or the bound is above
                ``max_distance``.
        """
        # An update that arrives without a step leaves up to gradient_norm of residual.
        ball = constrained_of(constants, self.gradient_norm or 0.0)
        bound = ball.require_useful()
        require_below(max_distance, 2 * ball.radius, f"any two models in the ball of radius {ball.radius:g}")
        if bound > max_distance:
            raise Refused(f"The bound {bound:.3g} is above max_distance {max_distance:g}.", RAISE)
        return {"bound": bound}

    def distance(
        self, problem: Problem, forgotten: Forgotten, retain: Examples | None, constants: Mapping[str, float]
    ) -> float:
        """Return the bound with the residual of the update's last solve."""
        if not forgotten.evidence:
            return 0.0
        return constrained_of(constants, residual_of(forgotten.evidence)).require_useful()

    def _radius(self) -> float:
        if self.radius is None:
            raise Refused(
                "newton's estimated bound holds in a ball, and the option radius is not set.",
                "Set radius to a norm that neither the trained nor a retrained model exceeds.",
            )
        return self.radius


@dataclass(frozen=True)
class EnforcedBall(Ball):
    """The same bound where the training itself holds the weights in the ball (``Training.radius``)."""

    assumptions: ClassVar[tuple[str, ...]] = (
        "The reference is the same training, which holds the weights in the ball of radius C after every step.",
    )
    origin: ClassVar[str] = "option radius: the training holds the weights in this ball after every step"

    def require_training(self, problem: Problem) -> None:
        """Raise Refused where the training does not hold the weights within the option radius."""
        radius, held = self._radius(), problem.training.radius
        if held is None or held > radius or problem.recipe.weights is not None:
            raise Refused(
                f"The ball is enforced, and this recipe's training does not hold the weights within {radius:g}.",
                f"Set Training(radius={radius:g}) and train here.",
            )


def constrained_of(constants: Mapping[str, float], residual: float) -> Constrained:
    """Return what the bound depends on, from ``Ball.constants`` by name. ``residual``: of the update's last solve."""
    return Constrained(
        radius=constants["C"],
        damping=constants["lambda"],
        smallest_eigenvalue=constants["mu"],
        hessian_lipschitz=constants["M"],
        gradient_norm=constants["G"],
        residual=residual,
    )


def residual_of(evidence: Mapping[str, Json]) -> float:
    """Return ||r|| of the last solve in a Newton update's evidence.

    Where no step was taken, x = 0 is the solution of (H + lambda I) x = grad F_D: its residual is the whole gradient.
    """
    steps = cast("list[dict[str, float]]", evidence["steps"])
    if not steps:
        return float(cast(float, evidence["gradient_norm"]))
    return float(steps[-1]["residual"]) * float(steps[-1]["gradient_norm"])


def measured(problem: Problem, examples: Examples, w: Tensor, radius: float) -> tuple[float, float, float]:
    """Measure (mu, M, G) of F_D over all samples, at w (d,) and at a few seeded points of the ball.

    mu: the least Ritz value of the Hessian, rounded down. M: the largest ||H(w) - H(v)|| / ||w - v||, rounded up. G:
    ||grad F_D(w)||, rounded up: what the training left is what a retraining is taken to leave.
    """
    objective = Objective(problem, examples)
    here = objective.at(w)
    seeded = torch.Generator().manual_seed(problem.training.seed)
    start = torch.randn(len(w), generator=seeded, dtype=problem.dtype).to(w.device)
    least, rough = spectral_norm(here.product, start, PRODUCTS)[1], 0.0
    for v in (_inside(w, seeded, radius) for _ in range(POINTS)):
        there = objective.products(v)
        least = min(least, spectral_norm(there, start, PRODUCTS)[1])
        largest, smallest = spectral_norm(_difference(here.product, there), start, PRODUCTS)
        rough = max(rough, max(largest, -smallest) / float((w - v).norm()))
    return -rounded_up(-least), rounded_up(rough), rounded_up(float(here.gradient.norm()))


def _inside(w: Tensor, generator: torch.Generator, radius: float) -> Tensor:
    """Draw a point of the ball, in a random direction from the origin."""
    v = torch.randn(len(w), generator=generator, dtype=w.dtype).to(w.device)
    length = radius * float(torch.rand(1, generator=generator)) / float(v.norm())
    return length * v


def _difference(first: Product, second: Product) -> Product:
    return lambda v: first(v) - second(v)
