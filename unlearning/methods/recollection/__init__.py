"""Hessian-free recollection (HF, arXiv 2404.01712): one vector per person; forgetting is one addition.

Two forms; ``Training.converge`` decides which applies.

**Trajectory** (eq. 8-10 of the paper). With g_t the full batch gradient, decay included, phi(g) = min(1, C/||g||) g the
clipped one and D_t its derivative at g_t (``curvature.clipped_map``; the identity where the step is not clipped):
``a_u <- a_u - eta_t D_t [(H_t + lambda I) a_u - (1/|B_t|) sum_{i in B_t of u} (grad l_i(w_t) + [H_t,i a_u])]``,
so that ``w_T + a_u`` approximates retraining with |B_t| kept as denominator (eq. 5). The bracketed term is ours
(``carried_by="others"``, the default): retraining without u takes no step along u's own curvature either. With it the
recursion linearises that retraining in the weights alone, exactly so for a quadratic loss; without it
(``carried_by="everyone"``, the published one) it is the derivative of the training with every gradient of u weighted by
1 - s, at s = 0; docs/methods.md has what both leave. Deviations from the reference code, and why: the batch is
clipped and not each sample (as the training does); a sample's gradient is added after the product (the code applies one
factor too many); the derivative of clipping is used (a frozen scale is 1 % off); no noise is added here, since the
certificate's noise is fresh at every update; the samples of one person share one vector (the published vectors of the
samples sum to the published vector of the person); all people advance together in batched products.

**Converged** (certificates.md). With w_0 the minimiser over n samples and H the Hessian of the objective there,
``a_u = (1/n) sum_{i of u} H^{-1} (grad l_i + lambda w_0)`` and the weights after m samples have gone are
``w_0 + n/(n-m) sum a_u`` (renormalised), or without ``lambda w_0`` and the factor (fixed denominator). The state keeps
S = sum a_u over all people forgotten so far. S tells no more than the remaining vectors do: all vectors of the
renormalised form sum to H^{-1} grad F(w_0) = 0.

**Chosen people** (``Recipe.vectors_for``): a vector is kept for these alone, in both forms. All samples carry
it, so that it is the same vector. ``forget`` refuses all others as ``VectorsMissing``.

**Repair** (``repair_epochs``, the paper's OUR strategy; ``repair.py``): after the addition the training runs
on for some passes over the retained, and every remaining vector follows it; with ``repair_tolerance`` only where the
accuracy has fallen. Trajectory form alone: a converged update ends in a minimiser already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from unlearning.methods.recollection import room
from unlearning.methods.recollection.repair import accuracy_of, due, repaired, require_open_end, require_room
from unlearning.methods.recollection.vectors import (
    CARRIED_BY,
    CURVATURES,
    DENSE_LIMIT,
    Converged,
    Followed,
    Form,
    added_along,
    added_at_minimiser,
    counts,
    holders,
    sum_of,
)
from unlearning.model.descent.plan import REFERENCES
from unlearning.model.method import OF_POLICY, Method, require_followed
from unlearning.model.problem import Problem
from unlearning.quality.distance_left import calibration_sets as calibration_sets
from unlearning.quality.distance_left import distance_left as distance_left
from unlearning.quality.simulate import left_by as left_by
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
from unlearning.types import (
    Ineffective as Ineffective,
)
from unlearning.types import (
    RecipeError as RecipeError,
)
from unlearning.types import (
    Vectors as Vectors,
)


@dataclass(frozen=True)
class Recollection(Method):
    """Keep one vector per person, add the forgotten people's vectors.

    Args:
        reference: which retraining is approximated. None: the form's own (trajectory: ``fixed-denominator``,
            converged: ``renormalised``).
        curvature: ``hessian``, or ``gauss-newton`` (no negative curvature; trajectory form).
        carried_by: the curvature that carries a vector: of ``others`` (without its person's own; exact vectors
            along a trajectory only), or ``everyone``. None: ``others`` where it can be had.
        repair_epochs: E_r, passes over the retained samples at each update, through which every remaining vector is
            carried. 0: none; more needs the retained samples and rewrites all vectors at each repair.
        repair_tolerance: an update is repaired where the holdout accuracy is more than this, a fraction, below that of
            the preparation (the paper repairs where it "significantly drops"). None: every update is.
    """

    name: ClassVar[str] = "recollection"
    near: ClassVar[bool] = True
    secret_state: ClassVar[tuple[str, ...]] = (
        "The recollections of the people who are left depend on those who were deleted.",
        "The sum of the deleted people's recollections: a converged model keeps it by itself, a recorded training "
        "keeps it added to the weights before noise. After a single deletion that sum is that person's vector.",
    )
    reference: str | None = field(default=None, metadata=OF_POLICY)
    curvature: str = "hessian"
    carried_by: str | None = None
    repair_epochs: int = 0
    repair_tolerance: float | None = None

    @property
    def needs(self) -> frozenset[Need]:
        """Name what an update reads: a repair the retained and all vectors, otherwise none."""
        return frozenset({Need.RETAINED, Need.VECTORS}) if self.repair_epochs else frozenset()

    def __post_init__(self) -> None:
        if self.reference not in (None, *REFERENCES):
            raise ValueError(f"reference is {self.reference!r}; it must be None or one of {REFERENCES}.")
        if self.curvature not in CURVATURES:
            raise ValueError(f"curvature is {self.curvature!r}; it must be one of {tuple(CURVATURES)}.")
        if self.carried_by not in (None, *CARRIED_BY):
            raise ValueError(f"carried_by is {self.carried_by!r}; it must be None or one of {CARRIED_BY}.")
        if self.repair_epochs < 0:
            raise ValueError("repair_epochs must be 0 or more.")
        if self.repair_tolerance is not None and not (self.repair_epochs and 0.0 <= self.repair_tolerance < 1.0):
            raise ValueError("repair_tolerance needs repair_epochs, and must be at least 0 and below 1.")

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Compute every person's vector.

        ``facts["report"]`` holds ``form``, ``reference`` and, for trajectories, ``eta_lambda_max`` (the largest of a
        few sampled steps).

        Raises:
            Refused: no trajectory, a reference that the form does not approximate, clipped samples, or no memory for
                what it keeps.
        """
        require_followed(self, problem.recipe)
        form = self._form(problem, learned)
        self._require_chosen(problem, examples)
        if self.repair_epochs:
            require_open_end(problem)
            require_room(problem, examples)
        people = len(self.holders(problem, examples))
        size = people * problem.dimension * problem.dtype.itemsize
        what = f"The exact vectors of {people} people, {problem.dimension} numbers each,"
        room.require_room(what, size, problem.device, "Use rewind or retrain.")
        state = form.state(examples, progress)
        if learned.trajectory is not None and self.repair_epochs:
            more = {"steps": len(learned.trajectory), "accuracy": accuracy_of(problem, state.weights)}
            state = replace(state, facts={**state.facts, **more})
        return _reported(form, examples, state)

    def growth(self, problem: Problem) -> int:
        """Return 2 where each person's vector is carried through all samples, and 1 where all share the work."""
        return 1 if problem.training.converge is not None and problem.dimension <= DENSE_LIMIT else 2

    def length(self, problem: Problem) -> int:
        return problem.dimension

    def holders(self, problem: Problem, examples: Examples) -> list[str]:
        """Return the people with a vector, in sorted order: all, or those of the recipe's ``vectors_for``."""
        return holders(problem, examples)

    def state_for(self, problem: Problem, examples: Examples, learned: Learned, people: Sequence[str]) -> State:
        """Return the state with the exact vectors of ``people`` alone."""
        followed = self._followed(problem, learned)
        return followed.stated(examples, followed.vectors(examples, people, silent))

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Add the vectors of ``forget.people``, in order of person.

        ``retain`` is read by a repair alone.

        Raises:
            Refused: a person has no vector, or no sample would be left; a repair lacks the retained samples or
                diverges.
        """
        if not forget:
            return Forgotten(state)
        total = sum_of(forget.vectors, forget.people, state.weights)
        samples, before = counts(state)
        gone = before + len(forget.positions)
        if gone >= samples:
            raise Refused(f"None of the {samples} samples would be left.", "Retire the model instead.")
        update = added_along if problem.training.converge is None else added_at_minimiser
        fresh = update(state, total, gone)
        evidence: dict[str, Json] = {
            "recollection_norm": float(total.norm()),
            "distance_moved": float((fresh.weights - state.weights).norm()),
        }
        if self.repair_epochs and due(problem, fresh, self.repair_tolerance):
            left = retained(forget, retain)
            fresh = repaired(
                problem,
                replace(fresh, vectors=dict(forget.vectors.read(set(left.people) - forget.people))),
                left,
                self.repair_epochs,
                curvature=self.curvature,
                carried_by=self.carried_by or "others",
            )
            evidence["distance_repaired"] = float((fresh.weights - state.weights).norm())
        return Forgotten(fresh, evidence)

    def _form(self, problem: Problem, learned: Learned) -> Form:
        if problem.training.converge is not None:
            return self._converged(problem, learned)
        if learned.trajectory is None:
            raise Refused(
                "The model was trained elsewhere and its trajectory was not recorded.",
                "Record it with unlearning.Recorder, or use retrain, newton or safe.",
            )
        if self.reference == "renormalised":
            raise Refused(
                "Along a trajectory, recollections approximate the retraining that keeps |B_t| as denominator.",
                "Ask for reference fixed-denominator, or use retrain or mini.",
            )
        if problem.training.sample_clip is not None:
            raise Refused("sample_clip is set: recollections follow batch clipping only.", "Use rewind or retrain.")
        return Followed(problem, learned.weights, learned.trajectory, self.curvature, self.carried_by or "others")

    def _converged(self, problem: Problem, learned: Learned) -> Converged:
        if self.repair_epochs:
            raise Refused(
                "The training converges, and its updates end in a minimiser without repair.",
                "Leave repair_epochs out.",
            )
        if self.carried_by == "others":
            raise Refused("The training converges: carried_by others follows a trajectory.", "Leave carried_by out.")
        return Converged(problem.double(), learned.weights.double(), self.reference or "renormalised")

    def _require_chosen(self, problem: Problem, examples: Examples) -> None:
        if problem.recipe.vectors_for is None:
            return
        if len(self.holders(problem, examples)) < 2:
            raise Refused("vectors_for names fewer than two people of the samples.", "Name more, or use retrain.")

    def _followed(self, problem: Problem, learned: Learned) -> Followed:
        form = self._form(problem, learned)
        if not isinstance(form, Followed):
            raise Refused("This preparation is not shared out.", "Prepare it in one piece.")
        return form


def _reported(form: Form, examples: Examples, state: State) -> State:
    return replace(state, facts={**state.facts, "report": form.report(examples)})


METHOD = Recollection
