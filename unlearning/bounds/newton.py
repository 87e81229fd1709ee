"""How far a damped Newton step in a ball can end from a retrained model: the bound of CNS.

Source: Zhang, Dong, Wang, Li, "Towards Certified Unlearning for Deep Neural Networks" (ICML 2024, arXiv 2408.00920).
The result is proved here anew, because it is short and the paper's constants are named differently in places.

Let w and v lie in the ball of radius C, v the retrained model with ||grad F_D(v)|| <= G; let the Hessian of F_D be
M-Lipschitz on the ball, its least eigenvalue there at least mu, and mu + lambda > 0. The step solves
``(H(w) + lambda I) x = grad F_D(w)`` up to a residual r. Then, with ``u = w - v`` and ||u|| <= 2C,

    w - x - v = (H(w) + lambda I)^{-1} [ (H(w) - int_0^1 H(v + t u) dt) u + lambda u - grad F_D(v) + r ]
    ||w - x - v|| <= (M ||u||^2 / 2 + lambda ||u|| + G + ||r||) / (lambda + mu)
                  <= (2 C (M C + lambda) + G + ||r||) / (lambda + mu)

and projecting w - x on the ball, where v lies, brings it no farther from v. It holds for every release in turn,
because nothing is asked of w but to lie in the ball.

C and lambda are chosen. M, mu and G are measured at a few points: lower bounds of the truth (an upper one for mu), so
that a claim with them is ``estimated``. They are rounded to one significant digit, away from the flattering side: they
are published, and were measured on everyone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearning.model.curvature import spectral_norm
from unlearning.model.objective import Objective, Product
from unlearning.model.problem import Problem
from unlearning.types import Examples, Refused

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
        """Delta. Infinite where the damped Hessian may be singular."""
        curved = self.damping + self.smallest_eigenvalue
        if curved <= 0:
            return math.inf
        spread = 2 * self.radius * (self.hessian_lipschitz * self.radius + self.damping)
        return (spread + self.gradient_norm + self.residual) / curved

    def require_useful(self) -> float:
        """The distance. Raises Refused where it is vacuous: any two points of the ball lie within 2 C."""
        distance = self.distance()
        if not distance < 2 * self.radius:
            raise Refused(
                f"The bound {distance:.3g} is vacuous: any two models in the ball of radius {self.radius:g} lie within "
                f"{2 * self.radius:.3g}.",
                "Lower damping, raise weight_decay, or claim nothing: ask for the guarantee none.",
            )
        return distance


def measured(problem: Problem, examples: Examples, w: Tensor, radius: float) -> tuple[float, float, float]:
    """(mu, M, G) of F_D over everyone, as seen at w (d,) and at a few seeded points of the ball.

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


def rounded_up(value: float) -> float:
    """To one significant digit, towards plus infinity; what is below 1e-12 in size becomes 0 or 1e-12.

    A published constant that is measured on everyone should tell little about anyone.
    """
    if abs(value) <= 1e-12:
        return 0.0 if value <= 0 else 1e-12
    scale = 10.0 ** math.floor(math.log10(abs(value)))
    return float(f"{math.ceil(value / scale - 1e-9) * scale:.6g}")


def _inside(w: Tensor, generator: torch.Generator, radius: float) -> Tensor:
    """A point of the ball, in a random direction from the origin."""
    v = torch.randn(len(w), generator=generator, dtype=w.dtype).to(w.device)
    length = radius * float(torch.rand(1, generator=generator)) / float(v.norm())
    return length * v


def _difference(first: Product, second: Product) -> Product:
    return lambda v: first(v) - second(v)
