"""Repair after an update of recollection: train on without the forgotten, and carry every vector along.

HF's strategy "OUR" (arXiv 2404.01712): E_r passes over the retained samples, and for each of their batches
``a_u <- a_u - eta_t D_t [(H_t + lambda I) a_u - (1/|B_t|) sum_{i in B_t of u} (grad l_i(w_t) + [H_t,i a_u])]``, the
recursion of ``unlearning.methods.recollection`` at the repaired weights, in the form (``carried_by``) in which the
vectors were computed. The steps are those that the training would have taken next: its decaying step size, its batch
size and clipping; the batch order follows from its seed and from how many steps were taken before.

How far the result is from a retraining depends on how many updates there were, not only on the deletions: no claim is
claimed about it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from torch import Tensor

from unlearning.methods.recollection.vectors import GROUP_LIMIT, Followed
from unlearning.model.problem import Problem
from unlearning.model.training import prolong
from unlearning.types import Examples, RecipeError, Refused, State


def repaired(
    problem: Problem, state: State, retain: Examples, epochs: int, *, curvature: str, carried_by: str
) -> State:
    """Train on for ``epochs`` passes over ``retain`` and carry the vectors of ``state``, each (d,), through them.

    ``state.facts["steps"]`` counts the steps taken so far, repairs included.

    Raises:
        Refused: the weights stop being finite.
    """
    work = problem.cast(state.weights.dtype)
    first = cast(int, state.facts["steps"])
    try:
        taken = prolong(work, retain, state.weights.to(work.device), epochs, first)
    except RecipeError:
        raise Refused("The repair diverges.", "Leave repair_epochs out, or train at a lower learning rate.") from None
    weights = taken.checkpoints[-1]
    vectors = Followed(work, weights, taken, curvature, carried_by).carried(retain, state.vectors)
    return replace(state, weights=weights, vectors=vectors, facts={**state.facts, "steps": first + len(taken)})


def accuracy_of(problem: Problem, w: Tensor) -> float | None:
    """Return the accuracy of w (d,) on the holdout; None where nothing is measured."""
    inputs, targets = (part.to(problem.device) for part in problem.recipe.holdout_tensors)
    return problem.cast(w.dtype).accuracy(w, inputs, targets)


def due(problem: Problem, state: State, tolerance: float | None) -> bool:
    """Tell whether an update is to be repaired: always (None), or where the accuracy fell by more than ``tolerance``.

    ``state.facts["accuracy"]`` is that of the preparation.
    """
    if tolerance is None:
        return True
    before, after = cast("float | None", state.facts["accuracy"]), accuracy_of(problem, state.weights)
    return before is not None and after is not None and before - after > tolerance


def require_open_end(problem: Problem) -> None:
    """Raise Refused where the step size follows a schedule that ends with the training."""
    shape = problem.training.schedule.shape
    if shape != "constant":
        raise Refused(
            f"repair_epochs train on after the end, and the schedule {shape!r} ends with the training.",
            "Leave repair_epochs out, or use Training.decay, which continues.",
        )


def require_room(problem: Problem, examples: Examples) -> None:
    """Raise Refused where all vectors are too large to be held, and rewritten, at every update."""
    people = len(examples.people.distinct())
    if people * problem.dimension <= GROUP_LIMIT:
        return
    raise Refused(
        f"repair_epochs rewrites the vectors of all {people} people at every update, {problem.dimension} numbers "
        f"each; together at most {GROUP_LIMIT} are served.",
        "Leave repair_epochs out, or use rewind.",
    )
