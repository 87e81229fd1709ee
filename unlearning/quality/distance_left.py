"""Does a method help on this model? Measured against real retrainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from unlearning.model.method import KeepsVectors, Method
from unlearning.model.problem import Problem
from unlearning.model.training import retrace, retrained
from unlearning.quality.simulate import forget_set, left_by
from unlearning.types import (
    Examples,
    ForgetSet,
    Ineffective,
    Json,
    Learned,
    RecipeError,
    Refused,
    State,
    Vectors,
    VectorSource,
)

THRESHOLD = 0.7
"""the least distance left at which a method does not help"""
CALIBRATION_COUNT, CALIBRATION_SHARE = 3, 0.05
"""sets of people that are really retrained without, and the share of all people in each"""


def calibration_sets(examples: Examples, share: float, count: int, seed: int) -> tuple[ForgetSet, ...]:
    """Draw ``count`` independent sets of ``share`` of the people (at least one, never all).

    Raises:
        Refused: there is only one person.
    """
    names = sorted(examples.people.distinct())
    if len(names) < 2:
        raise Refused("All samples belong to one person.", "Name at least two people, or use retrain.")
    size = min(max(1, round(share * len(names))), len(names) - 1)
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randperm(len(names), generator=generator)[:size].tolist() for _ in range(count))
    return tuple(forget_set(examples, [names[index] for index in draw]) for draw in draws)


def distance_left(untouched: Tensor, unlearned: Tensor, retrained: Tensor) -> float:
    """Return ``||w_retrain - w~|| / ||w_retrain - w||``: 0 is perfect, 1 is as far as an untouched model."""
    before = float((retrained.double() - untouched.double()).norm())
    after = float((retrained.double() - unlearned.double()).norm())
    if not math.isfinite(after):
        return math.inf
    if before == 0.0:
        return 0.0 if after == 0.0 else math.inf
    return after / before


def measure(
    method: Method,
    problem: Problem,
    examples: Examples,
    state: State,
    *,
    retrained: Callable[[tuple[int, ...]], Tensor],
    sets: Sequence[ForgetSet],
) -> list[float]:
    """Measure the distance left by one update of each set, in order. ``retrained`` maps positions to retrained weights.
    A set has the vectors of its people.

    A reference that diverges gives infinity: there is no model to approximate.

    Raises:
        Refused: the method refuses one of the sets.
    """
    return [_measure_one(method, problem, examples, state, retrained=retrained, chosen=chosen) for chosen in sets]


def with_distance_left(
    method: Method,
    problem: Problem,
    examples: Examples,
    learned: Learned,
    state: State,
    *,
    vectors: VectorSource,
    threshold: float = THRESHOLD,
) -> State:
    """Return the prepared state with ``distance_left`` in its report, where it is known.

    Raises:
        Refused: ``mean_distance_left``; Ineffective where a method that aims at the retrained weights leaves
            ``threshold`` of the distance or more.
    """
    mean = mean_distance_left(method, problem, examples, learned, state, vectors=vectors)
    if mean is None:
        return state
    report = {**cast("dict[str, Json]", state.facts.get("report", {})), "distance_left": mean}
    if method.near and not mean < threshold:
        steep = report.get("eta_lambda_max")
        cause = f" eta*lambda_max is {steep:.2g}." if isinstance(steep, float) else ""
        raise Ineffective(
            f"After {method.name} the weights are {mean:.3g} times as far from retraining as before (distance_left, "
            f"must be below {threshold:g}).{cause}",
            "Use retrain, other options, or a smaller learning rate.",
        )
    return replace(state, facts={**state.facts, "report": report})


def mean_distance_left(
    method: Method, problem: Problem, examples: Examples, learned: Learned, state: State, *, vectors: VectorSource
) -> float | None:
    """Measure the mean over sets of people, against real retrainings; None: there is no reference.

    So it is for an exact method, and for a model that was trained elsewhere, unless its steps were recorded or it ends
    in a minimiser. Of a method that does not aim at the retrained weights it is also None where there is a single
    person or a training diverges.

    Raises:
        Refused: there is a single person, or the method refuses a set.
    """
    if method.exact:
        return None
    again = retraining(problem, examples, learned, state.weights.dtype, reference_of(state))
    if again is None:
        return None
    people = _with_vectors(method, problem, examples)
    if not method.near and len(people.people.distinct()) < 2:
        return None
    drawn = calibration_sets(people, CALIBRATION_SHARE, CALIBRATION_COUNT, problem.training.seed)
    sets = [replace(each, vectors=Vectors(dict(vectors.read(each.people)))) for each in drawn]
    measured = measure(method, problem, examples, state, retrained=again, sets=sets)
    mean = sum(measured) / len(measured)
    return mean if method.near or math.isfinite(mean) else None


def retraining(
    problem: Problem, examples: Examples, learned: Learned, precision: torch.dtype, reference: str = "renormalised"
) -> Callable[[tuple[int, ...]], Tensor] | None:
    """Return the function from positions to the weights (d,), in ``precision``, of a training without them.

    None: the model was trained elsewhere, its steps were not recorded, and it does not end in a minimiser.
    The function raises RecipeError where such a training diverges.
    """
    convergent = problem.training.converge is not None
    if problem.recipe.weights is not None and not convergent and learned.trajectory is None:
        return None
    work, weights = problem.cast(precision), learned.weights.to(precision)
    trajectory = learned.trajectory if learned.weights.dtype == precision and not convergent else None

    def without(omit: tuple[int, ...]) -> Tensor:
        if trajectory is not None:
            return retrace(work, examples, trajectory, omit, reference=reference)
        return retrained(work, examples, weights, omit, reference=reference)

    return without


def reference_of(state: State) -> str:
    """Return the retraining that a method approximates, as its report says."""
    report = state.facts.get("report")
    named = report.get("reference") if isinstance(report, dict) else None
    return named if isinstance(named, str) else "renormalised"


def _with_vectors(method: Method, problem: Problem, examples: Examples) -> Examples:
    """Return the samples of people with a vector, where the method keeps vectors; else all."""
    if not isinstance(method, KeepsVectors):
        return examples
    kept = frozenset(method.holders(problem, examples))
    return examples.only(examples.positions[examples.people.where(kept.__contains__).to(examples.positions.device)])


def _measure_one(
    method: Method,
    problem: Problem,
    examples: Examples,
    state: State,
    *,
    retrained: Callable[[tuple[int, ...]], Tensor],
    chosen: ForgetSet,
) -> float:
    generator = torch.Generator().manual_seed(problem.training.seed)
    unlearned = method.forget(problem, state, chosen, left_by(examples, chosen), generator).state.weights
    try:
        return distance_left(state.weights, unlearned, retrained(chosen.positions))
    except RecipeError:
        return math.inf
