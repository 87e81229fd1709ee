"""Does a method help on this model? Measured on people who are really retrained without."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import retrained
from unlearning.quality.simulate import forget_set, left_by
from unlearning.types import Examples, ForgetSet, Ineffective, RecipeError, Refused, State, Vectors

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
    """Return ``||w_retrain - w~|| / ||w_retrain - w||``: 0 is perfect, 1 is as far as doing nothing."""
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

    A reference that diverges gives infinity: there is nothing to approximate.

    Raises:
        Refused: the method refuses one of the sets.
    """
    return [_measure_one(method, problem, examples, state, retrained=retrained, chosen=chosen) for chosen in sets]


def mean_distance_left(
    method: Method, problem: Problem, examples: Examples, state: State, *, reference: str, share: float, count: int
) -> float | None:
    """Measure the mean over ``count`` sets of ``share`` of the people, really retrained without; None: not known.

    It is not known for a model trained elsewhere, for a single person, where ``count`` is 0, and where some training
    diverges.
    """
    if count == 0 or problem.recipe.weights is not None or len(examples.people.distinct()) < 2:
        return None
    work = problem.cast(state.weights.dtype)

    def again(omit: tuple[int, ...]) -> Tensor:
        return retrained(work, examples, state.weights, omit, reference=reference)

    sets = calibration_sets(examples, share, count, problem.training.seed)
    measured = measure(method, problem, examples, state, retrained=again, sets=sets)
    mean = sum(measured) / len(measured)
    return mean if math.isfinite(mean) else None


def require_effective(method: str, measured: Sequence[float], threshold: float, hint: str) -> None:
    """Raise Ineffective where the mean of ``measured`` is not below ``threshold``."""
    mean = sum(measured) / len(measured)
    if mean < threshold:
        return
    raise Ineffective(
        f"{method} leaves {mean:.3g} of the distance to retraining on this model (1: as far as doing nothing), where "
        f"at most {threshold:g} is asked.",
        hint,
    )


def _measure_one(
    method: Method,
    problem: Problem,
    examples: Examples,
    state: State,
    *,
    retrained: Callable[[tuple[int, ...]], Tensor],
    chosen: ForgetSet,
) -> float:
    forget = replace(chosen, vectors=Vectors(state.vectors))
    generator = torch.Generator().manual_seed(problem.training.seed)
    unlearned = method.forget(problem, state, forget, left_by(examples, chosen), generator).state.weights
    try:
        return distance_left(state.weights, unlearned, retrained(forget.positions))
    except RecipeError:
        return math.inf
