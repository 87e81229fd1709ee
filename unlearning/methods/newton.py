"""The certified Newton step: one damped solve towards the minimiser of the retained samples.

Source: Zhang, Dong, Wang, Li, "Towards Certified Unlearning for Deep Neural Networks" (ICML 2024, arXiv 2408.00920),
"CNS" below. With F_D the mean loss of the retained plus weight decay, H_D its Hessian and lambda the damping, both at
the current weights w::

    w~ = w - (H_D + lambda I)^{-1} grad F_D(w)

The paper's local convex approximation is the damping; its norm constraint is ``radius``; its estimate of the inverse
(algorithm 1) is ``solver="lissa"``; an update starts from the last one's w~ before noise (algorithm 2). Noise is no
part of the method: the update adds it.

Deviations, each with its reason:

* The gradient is that of the retained, weight decay included. The paper infers it from the forgotten alone
  (``-m/(n-m) grad F_U``), which assumes a training that ended in an exact stationary point.
* Weight decay is (lambda/2)||w||^2 and the damping is in the Hessian alone. The reference code differentiates the sum
  of the parameters' norms, not of their squares, so its damping is neither lambda I nor constant.
* The solve is conjugate gradients to a stated, recomputed relative residual. The paper's recursion has no stopping
  rule; it is offered with its scale compared with the measured largest eigenvalue, below half of which it diverges.
* The projection applies to the result, and to the training where the recipe has ``Training.radius``, as the paper
  trains. Weights that lie outside the ball are refused.
* ``steps`` may be more than 1: the step again, until the gradient's norm is at most ``gradient_norm``. For strongly
  convex models that norm over lambda bounds the distance to retraining, which one step alone does not.
* Gradients, residuals and the sum are in float64 unless ``precision`` says otherwise: in float32 alone, conjugate
  gradients stall near (condition number) * 6e-8. Most products of a solve are still in float32, refined until
  the float64 residual is reached. Trainings with ``converge`` always take float64.

* Registration measures on a few sets of people, really retrained without them, whether the step helps on this model.

What cannot be solved is refused, not returned: neither decay nor damping on some coordinate (no term keeps the
Hessian from being singular), a direction of non-positive curvature, a residual that is not reached, a step after which
the objective is higher than before, and no sample left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.accounting.certificate import Guarantee
from unlearning.bounds.newton import Ball, EnforcedBall
from unlearning.model.curvature import Solution, refined_conjugate_gradients, spectral_norm
from unlearning.model.descent.ball import hold_within, norm_of
from unlearning.model.descent.ingredients import Ingredient
from unlearning.model.linear_head import head_of
from unlearning.model.method import INTERNAL, Bound, Method, require_followed
from unlearning.model.objective import Objective, Point, Product
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Json,
    Learned,
    Need,
    Progress,
    Refused,
    State,
    retained,
    silent,
)

SOLVERS = ("conjugate-gradients", "lissa")
BALLS: Mapping[str, type[Ball]] = {"assumed": Ball, "enforced": EnforcedBall}
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
EIGENVALUE_PRODUCTS = 40
COARSE = 0.1
"""relative residual of a solve that is only the start of the refinement under ``proved``"""


@dataclass(frozen=True)
class Newton(Method):
    """One damped Newton step (or several) on the objective of the retained.

    Args:
        damping: the paper's lambda, added to the Hessian. 0 suits objectives that decay every coordinate and are
            convex; others need more than their most negative eigenvalue.
        solver: "conjugate-gradients" or "lissa".
        residual: the relative residual ||g - (H + lambda I) x|| / ||g|| that conjugate gradients must reach; under
            ``proved`` it is ``COARSE``.
        iterations: the most products that one solve may take.
        steps: the most Newton steps of an update; 1 is the paper's.
        gradient_norm: stop before the next step once ||grad F_D|| is at most this; None: take every step.
        radius: C, the result is projected to ||w|| <= C; None: not projected.
        ball: "assumed": the bound takes both models to lie in the ball; "enforced", where the recipe's
            ``Training.radius`` is at most C: the training is held in it after every step.
        lissa_scale: the recursion's H; None: twice the measured largest eigenvalue.
        lissa_depth: s_2, products of one recursion.
        lissa_repeats: s_1, recursions that are averaged.
        lissa_batch: samples drawn (with replacement) for each product; None: all retained.
        precision: "float64" or "float32".

    Raises:
        Refused: a value outside its range.
    """

    name: ClassVar[str] = "newton"
    begins_anew: ClassVar[bool] = True
    near: ClassVar[bool] = True
    follows: ClassVar[frozenset[Ingredient]] = frozenset({Ingredient.MOMENTUM, Ingredient.BALL})
    secret_state: ClassVar[tuple[str, ...]] = (
        "The weights before noise start from those that were trained on the deleted people.",
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})

    damping: float = 0.0
    solver: str = "conjugate-gradients"
    residual: float = field(default=1e-6, metadata=INTERNAL)
    iterations: int = field(default=1000, metadata=INTERNAL)
    steps: int = field(default=1, metadata=INTERNAL)
    gradient_norm: float | None = field(default=None, metadata=INTERNAL)
    radius: float | None = None
    ball: str = field(default="assumed", metadata=INTERNAL)
    lissa_scale: float | None = None
    lissa_depth: int = 1000
    lissa_repeats: int = 1
    lissa_batch: int | None = None
    precision: str = field(default="float64", metadata=INTERNAL)

    def __post_init__(self) -> None:
        _require(0.0 <= self.damping < float("inf"), "damping", self.damping, "0 or more")
        _require(self.solver in SOLVERS, "solver", self.solver, f"one of {', '.join(SOLVERS)}")
        _require(0.0 < self.residual < 1.0, "residual", self.residual, "between 0 and 1")
        _require(self.ball in BALLS, "ball", self.ball, f"one of {', '.join(BALLS)}")
        _require(self.precision in PRECISIONS, "precision", self.precision, f"one of {', '.join(PRECISIONS)}")
        for name in ("iterations", "steps", "lissa_depth", "lissa_repeats"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("gradient_norm", "radius", "lissa_scale", "lissa_batch"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "positive, or None")

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Keep the weights; see whether a step can be solved on all samples.

        ``facts["report"]`` holds ``damping``.

        Raises:
            Refused: the step would have no unique solution, weights outside the ball, or a LiSSA scale that
                diverges.
        """
        require_followed(self, problem.recipe)
        self._require_unique(problem)
        BALLS[self.ball](self.radius, self.damping, self.gradient_norm).require_training(problem)
        self._require_inside(learned.weights)
        work = self._work(problem)
        w = learned.weights.to(device=work.device, dtype=work.dtype)
        if head_of(work) is None:
            self._require_definite(Objective(work, examples), w)
        if self.solver == "lissa":
            self._scale(Objective(work, examples), w)
        report: dict[str, Json] = {"damping": self.damping}
        progress(0.1)
        progress(1.0)
        return State(learned.weights, {}, {"report": report})

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Take steps from the last update's w~ towards the minimiser of ``retain``. The forgotten are not read.

        Raises:
            Refused: see the module's last paragraph.
        """
        if not forget:
            return Forgotten(state)
        left = retained(forget, retain)
        work = self._work(problem)
        objective, quick = Objective(work, left), Objective(work.cast(torch.float32), left)
        w = state.weights.to(device=work.device, dtype=work.dtype)
        here = objective.at(w)
        taken: list[Json] = []
        while len(taken) < self.steps and not self._arrived(here):
            found = self._lissa(objective, w, here, generator) if self.solver == "lissa" else self._cg(quick, w, here)
            stepped = w - found.x
            there = objective.at(stepped)
            _require_descent(here, there)
            taken.append({"gradient_norm": _norm(here), "residual": found.residual, "products": found.iterations})
            w = self._project(stepped)
            here = there if w is stepped else objective.at(w)
        evidence: dict[str, Json] = {"steps": taken, "gradient_norm": _norm(here)}
        stored = self._project(w.to(state.weights.dtype))
        return Forgotten(State(stored, state.tensors, state.facts), evidence)

    def under(self, guarantee: Guarantee, recipe: Recipe) -> Method:
        """Return the method with the ball that the recipe's training holds, and coarser where it is ``proved``.

        There the weights are moved on until the bound is met, and what the solve did beyond that is lost.
        """
        held = recipe.training.radius if recipe.weights is None else None
        enforced = held is not None and self.radius is not None and held <= self.radius
        proved = guarantee is Guarantee.PROVED
        return replace(self, ball="enforced" if enforced else self.ball, residual=COARSE if proved else self.residual)

    def bound(self, guarantee: Guarantee) -> Bound | None:
        """Return the paper's bound, ``estimated``: its constants are measured."""
        bound = BALLS[self.ball](self.radius, self.damping, self.gradient_norm)
        return bound if guarantee is Guarantee.ESTIMATED else None

    def _work(self, problem: Problem) -> Problem:
        if problem.training.converge is not None:
            return problem.double()
        return problem.cast(PRECISIONS[self.precision])

    def _arrived(self, here: Point) -> bool:
        norm = _norm(here)
        return norm == 0.0 or (self.gradient_norm is not None and norm <= self.gradient_norm)

    def _project(self, w: Tensor) -> Tensor:
        held = w.clone()
        hold_within([held], self.radius)
        return w if torch.equal(held, w) else held

    def _cg(self, quick: Objective, w: Tensor, here: Point) -> Solution:
        """Solve for (H + lambda I)^{-1} grad F_D by conjugate gradients, with its recomputed residual."""
        product = self._damped(here.product)
        rough = self._damped(quick.products(w.float()))
        found = refined_conjugate_gradients(product, rough, here.gradient, self.residual, iterations=self.iterations)
        _require_curved(found)
        _require_solved(found, self.residual)
        return found

    def _lissa(self, objective: Objective, w: Tensor, here: Point, generator: torch.Generator) -> Solution:
        """Compute algorithm 1's recursion: v_0 = g, v_j = g + v_{j-1} - A_j v_{j-1} / scale; x = v / scale, averaged.

        A_j is the damped Hessian of ``lissa_batch`` retained samples, drawn again with replacement. Its residual is
        what its depth gives; it must be below 1, which is that of no step at all.
        """
        scale, g = self._scale(objective, w), here.gradient
        draw = self._draws(objective, w, generator)
        total = torch.zeros_like(g)
        for _ in range(self.lissa_repeats):
            v = g
            for depth in range(1, self.lissa_depth + 1):
                v = g + v - draw()(v) / scale
                _require_contraction(v, g, depth, scale)
            total = total + v / scale
        x = total / self.lissa_repeats
        residual = float((g - self._damped(here.product)(x)).norm() / g.norm())
        found = Solution(x, residual, self.lissa_depth * self.lissa_repeats)
        _require_solved(found, 1.0)
        return found

    def _draws(self, objective: Objective, w: Tensor, generator: torch.Generator) -> Callable[[], Product]:
        """Return what gives A_1, A_2, ..., each as its product."""
        size = self.lissa_batch
        if size is None:
            whole = self._damped(objective.products(w))
            return lambda: whole

        def draw() -> Product:
            places = torch.randint(objective.count, (size,), generator=generator, device=generator.device)
            return self._damped(objective.drawn(places).products(w))

        return draw

    def _scale(self, objective: Objective, w: Tensor) -> float:
        largest, _ = self._eigenvalues(objective, w)
        if self.lissa_scale is None:
            return 2.0 * largest
        if self.lissa_scale <= largest / 2:
            raise Refused(
                f"LiSSA with the scale {self.lissa_scale:.3g} diverges: the damped Hessian's largest eigenvalue is at "
                f"least {largest:.3g}.",
                f"Set lissa_scale above {largest:.3g}, or use conjugate-gradients.",
            )
        return self.lissa_scale

    def _damped(self, product: Product) -> Product:
        return lambda v: product(v) + self.damping * v

    def _eigenvalues(self, objective: Objective, w: Tensor) -> tuple[float, float]:
        """Return the damped Hessian's largest and smallest eigenvalue as Lanczos sees them (inside the spectrum)."""
        seeded = torch.Generator().manual_seed(objective.problem.training.seed)
        start = torch.randn(len(w), generator=seeded, dtype=w.dtype).to(w.device)
        return spectral_norm(self._damped(objective.products(w)), start, EIGENVALUE_PRODUCTS)

    def _require_definite(self, objective: Objective, w: Tensor) -> None:
        _, smallest = self._eigenvalues(objective, w)
        if smallest > 0.0:
            return
        needed = self.damping - smallest
        raise Refused(
            f"The Hessian is not positive definite at the trained weights: its smallest eigenvalue is at most "
            f"{-needed:.3g}, and damping is {self.damping:.3g}.",
            f"Set damping above {needed:.3g}, or choose another method.",
        )

    def _require_inside(self, w: Tensor) -> None:
        norm = norm_of([w])
        if self.radius is None or norm <= self.radius:
            return
        raise Refused(
            f"The trained weights have norm {norm:.3g}, outside the ball of radius {self.radius:.3g}.",
            f"Set radius to at least {norm:.3g}.",
        )

    def _require_unique(self, problem: Problem) -> None:
        if problem.training.sample_clip is not None:
            raise Refused(
                "sample_clip turns the gradient into one that no loss has: there is no objective to minimise.",
                "Leave sample_clip out, or choose another method.",
            )
        if float(problem.decay.min()) + self.damping > 0.0:
            return
        left_out = problem.training.undecayed
        raise Refused(
            f"Nothing keeps the Hessian from being singular: damping is 0 and weight decay leaves out "
            f"{', '.join(left_out) if left_out else 'every parameter'}.",
            "Set damping above 0, or decay every parameter.",
        )


METHOD = Newton


def _require_curved(found: Solution) -> None:
    if found.curvature > 0.0:
        return
    raise Refused(
        f"The Hessian of those who are left is not positive definite: the solve met a curvature of "
        f"{found.curvature:.3g}.",
        f"Raise damping by more than {-found.curvature:.3g}, or use retrain.",
    )


def _require_contraction(v: Tensor, b: Tensor, depth: int, scale: float) -> None:
    # Where every I - A_j/scale is a contraction, ||v_j|| <= (j + 1) ||b||.
    if float(v.norm()) <= 2.0 * (depth + 1) * float(b.norm()):
        return
    raise Refused(
        f"The LiSSA recursion diverges: after {depth} products with the scale {scale:.3g} its norm is "
        f"{float(v.norm()):.3g}, started from {float(b.norm()):.3g}.",
        "Raise lissa_scale or lissa_batch, or use conjugate-gradients.",
    )


def _require_solved(found: Solution, limit: float) -> None:
    if found.residual <= limit:
        return
    raise Refused(
        f"The solve does not converge: its relative residual is {found.residual:.2g} after {found.iterations} "
        f"products, above {limit:.2g}.",
        "Raise damping, or choose retrain.",
    )


def _require_descent(here: Point, there: Point) -> None:
    before, after = float(here.value), float(there.value)
    rounding = torch.finfo(here.value.dtype).eps ** 0.5 * (1.0 + abs(before))
    if after <= before + rounding:
        return
    raise Refused(
        f"The step diverges: the objective of those who are left changes from {before:.6g} to {after:.6g}.",
        "Raise damping, or choose retrain.",
    )


def _norm(point: Point) -> float:
    return float(point.gradient.norm())


def _require(holds: bool, name: str, value: object, must: str) -> None:
    if not holds:
        raise Refused(f"newton's {name} is {value!r}.", f"It must be {must}.")
