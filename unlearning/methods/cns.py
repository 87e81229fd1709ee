"""CNS as published: one damped Newton step away from the gradient of the forgotten, on curvature that is stored.

Source: Zhang, Dong, Wang, Li, "Towards Certified Unlearning for Deep Neural Networks" (ICML 2024, arXiv 2408.00920),
eq. 10 and algorithm 1. With m samples U forgotten of n, F the mean data loss plus weight decay, H its Hessian and
lambda the damping::

    w~ = w + m/(n-m) (H + lambda I)^{-1} grad F_U(w)

At a minimum over all n samples this is the step of ``unlearning.methods.newton`` up to the Hessian, because there
``grad F_D = -m/(n-m) grad F_U`` for the retained D. Away from one, after early stopping, ``newton`` moves on towards
the minimum of the retained, where no retraining goes; this step does not.

A series of deletions (algorithm 2) starts each update from the last one's w~ before noise, with n what remained before
it. Algorithm 2 reads the gradient of the retained there; here it is again that of the forgotten, as in algorithm 1.

Deviations, each with its reason:

* H is that of all samples at the trained weights (eq. 10: of the retained, drawn again for each product). It is stored
  at registration, and an update reads no retained sample. The two differ by a share m/n.
* What is stored is Q T Q^T of ``rank`` Lanczos steps, Q orthonormal; on the complement the curvature is the smallest
  weight decay. With ``rank`` as many as weights it is H itself.
* The paper sets lambda by hand. Here it is 1/S by default, S the sum of the training's step sizes: t steps of size eta
  leave the weights about where a ridge of 1/(eta t) would. Where step sizes do not multiply gradients (AdamW, a
  training of the recipe's own, weights from elsewhere) it is the largest eigenvalue, above which the paper's bound
  wants lambda; of a training that ends in the minimum it is 0.
* The inverse is exact for what is stored; algorithm 1's recursion diverges below half of the largest eigenvalue.

Below minus the smallest eigenvalue the step has no meaning: preparation refuses and names a damping that would do.
On a network the step does not come near a retraining; registration measures how far it stays away, and refuses no
result for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.model.curvature import ritz_pairs
from unlearning.model.method import Method, require_followed
from unlearning.model.objective import Objective
from unlearning.model.problem import Problem
from unlearning.model.training import planned_by
from unlearning.settings import SGD
from unlearning.types import Examples, ForgetSet, Forgotten, Json, Learned, Need, Progress, Refused, State, silent

STORED_NUMBERS = 2**28
"""that the eigenvectors may take (2 GiB in float64 while they are computed)"""


@dataclass(frozen=True)
class Cns(Method):
    """One damped Newton step from the gradient of the forgotten.

    Args:
        damping: the paper's lambda, added to the Hessian; None: from the training, see the module's docstring.
        rank: how many directions of curvature are stored.

    Raises:
        Refused: a value outside its range.
    """

    name: ClassVar[str] = "cns"
    needs_no_steps: ClassVar[bool] = True
    secret_state: ClassVar[tuple[str, ...]] = (
        "The weights before noise, and the curvature at the trained weights that every update uses, depend on all who "
        "were trained on, the deleted people included.",
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FORGOTTEN})

    damping: float | None = None
    rank: int = 64

    def __post_init__(self) -> None:
        if self.damping is not None and not 0.0 <= self.damping < math.inf:
            raise Refused(f"cns's damping is {self.damping!r}.", "It must be a finite number, 0 or more.")
        if self.rank < 1:
            raise Refused(f"cns's rank is {self.rank!r}.", "It must be at least 1.")

    def require_size(self, problem: Problem, samples: int) -> None:
        size = min(self.rank, problem.trained) * problem.trained
        if size > STORED_NUMBERS:
            most = STORED_NUMBERS // problem.trained
            raise Refused(
                f"cns would store {size:,} numbers of curvature, and at most {STORED_NUMBERS:,} fit.",
                f"Set rank to at most {most}." if most else "Choose late, shards or retrain.",
            )

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Compute the curvature at the trained weights: ``rank`` passes over all samples.

        ``facts["report"]`` holds ``damping`` and ``rank``, how many directions are stored.

        Raises:
            Refused: a model of bytes, or a damping that leaves the damped Hessian without an inverse.
        """
        require_followed(self, problem.recipe)
        self.require_size(problem, len(examples))
        whole = self.rank >= problem.trained
        work = problem.double() if whole else problem.cast(learned.weights.dtype)
        curvature = Objective(work, examples).products(learned.weights.to(work.device, work.dtype))
        buffers = torch.zeros(problem.dimension - problem.trained, dtype=work.dtype, device=work.device)
        floor = self._floor(problem)
        rank, products = min(self.rank, problem.trained), 0

        def product(v: Tensor) -> Tensor:
            nonlocal products
            products += 1
            progress(products / rank)
            return curvature(torch.cat([v.to(work.dtype), buffers]))[: problem.trained].double() - floor * v

        seeded = torch.Generator().manual_seed(problem.training.seed)
        values, directions = ritz_pairs(product, problem.trained, rank, seeded, device=work.device)
        values = values + floor
        damping = self._damping(problem, examples, float(values[-1]))
        _require_definite(float(values[0]) if whole else min(float(values[0]), floor), damping)
        kept = directions if whole else directions.to(learned.weights.dtype)
        report: dict[str, Json] = {"damping": damping, "rank": rank}
        facts: dict[str, Json] = {"samples": len(examples), "damping": damping, "report": report}
        progress(1.0)
        return State(learned.weights, {"directions": kept, "eigenvalues": values}, facts)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Take the step from the last update's w~. No retained sample is read.

        Raises:
            Refused: the forgotten samples are missing, none would be left, or the step is not finite.
        """
        if not forget:
            return Forgotten(state)
        if forget.examples is None:
            raise Refused("cns needs the forgotten samples, and none were given.", "Hand over their samples.")
        count, gone = int(state.facts["samples"]), len(forget.examples)  # type: ignore[arg-type]
        if gone >= count:
            raise Refused(f"None of the {count} samples would be left.", "Delete the model instead.")
        work = problem.double()
        w = state.weights.to(device=work.device, dtype=torch.float64)
        gradient = Objective(work, forget.examples).at(w).gradient[: work.trained]
        step = gone / (count - gone) * self._solved(problem, state, gradient)
        if not bool(torch.isfinite(step).all()):
            raise Refused("The step is not finite.", "Raise damping, or choose retrain.")
        moved = torch.cat([w[: work.trained] + step, w[work.trained :]]).to(state.weights.dtype)
        facts = {**state.facts, "samples": count - gone}
        evidence: dict[str, Json] = {"damping": state.facts["damping"], "step_norm": float(step.norm())}
        return Forgotten(replace(state, weights=moved, facts=facts), evidence)

    def _solved(self, problem: Problem, state: State, gradient: Tensor) -> Tensor:
        """Return (H + lambda I)^{-1} g, both (trained,), with the stored eigenpairs of H."""
        directions = state.tensors["directions"].to(gradient.device, torch.float64)
        values = state.tensors["eigenvalues"].to(gradient.device)
        damping = float(state.facts["damping"])  # type: ignore[arg-type]
        elsewhere = self._floor(problem) + damping
        if len(directions) == problem.trained:  # nothing lies elsewhere, where even 0 would do
            return directions.T @ ((directions @ gradient) / (values + damping))
        return gradient / elsewhere + directions.T @ (
            (1.0 / (values + damping) - 1.0 / elsewhere) * (directions @ gradient)
        )

    def _floor(self, problem: Problem) -> float:
        """Return the curvature that every direction has at least of weight decay."""
        return float(problem.decay[: problem.trained].min())

    def _damping(self, problem: Problem, examples: Examples, largest: float) -> float:
        """Return the option, or what the training implies; ``largest`` is the largest eigenvalue of H."""
        training, recipe = problem.training, problem.recipe
        if self.damping is not None:
            return self.damping
        if training.converge is not None:
            return 0.0
        if recipe.weights is not None or not isinstance(training.optimizer, SGD):
            return largest
        return (1.0 - training.optimizer.momentum) / math.fsum(planned_by(problem, examples.positions).rates)


def _require_definite(smallest: float, damping: float) -> None:
    if smallest + damping > 0.0:
        return
    raise Refused(
        f"The damped Hessian has no inverse at the trained weights: the smallest eigenvalue is at most "
        f"{smallest:.3g}, and damping is {damping:.3g}.",
        f"Set damping above {abs(smallest):.3g}, or choose another method.",
    )


METHOD = Cns
