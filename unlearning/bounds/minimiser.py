"""The distance to the minimiser of a strongly convex objective, computed at the weights themselves.

It holds for any method with a training that ends in a minimiser: ``unlearning.model.convex`` has the inequality and its
rounding. Weights that lie too far are moved by Newton's method, so an update costs work and never its guarantee.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.model import convex
from unlearning.model.method import Bound
from unlearning.model.problem import Problem
from unlearning.model.tangent import drawn_start, tangent_of
from unlearning.types import Examples, Forgotten, Json, Refused, State

ROOM = 3.0
"""the greatest distance over the part of it that rounding may take; a person's displacement over the distance"""
FEW, MANY = 3, 31
"""people of whom registration measures the displacement: where one of the few is too small, the median of many decides.
One person may move a minimiser a thousand times as far as another, so that the median of three is a matter of chance"""


AROUND, GIVEN = "linearised_around", "the given weights"
DRAWN = "weights drawn at random: expect a low accuracy"
"""what registration reports of a tangent"""


@dataclass(frozen=True)
class Minimiser(Bound):
    """The bound ``(||grad F_D(w)|| + rounding) / weight_decay``, in float64.

    ``denominator`` divides the summed losses; None: the number of retained samples.
    """

    assumptions: ClassVar[tuple[str, ...]] = (
        "The objective is the recipe's mean data loss plus (weight_decay/2) ||w||^2 over every coordinate; it is "
        "strongly convex, and the reference is its unique minimiser on the retained samples. weight_decay is the same.",
    )
    checked: ClassVar[tuple[str, ...]] = (
        "The bound was computed in float64 for the very weights that got the noise, on every retained sample.",
    )
    denominator: int | None = None

    def require_possible(self, problem: Problem) -> None:
        """Raise Refused where the objective is not strongly convex, or the training does not end in its minimiser."""
        convex.require_strongly_convex(problem)
        if problem.acts_in_training:
            raise Refused(
                "Dropout or batch normalisation acts in the training, which then minimises another loss.",
                "Call .eval() on that part in model().",
            )
        if problem.training.converge is None:
            raise Refused("The training does not end in the minimiser.", "Set Training.converge, for example to 1e-8.")

    def require_useful(
        self, problem: Problem, examples: Examples, state: State, max_distance: float, constants: Mapping[str, float]
    ) -> dict[str, Json]:
        """Return, for a tangent, the accuracy at the public weights and whether these are random; else no figure.

        Rounding and displacements are not reported: they are computed from all features.

        Raises:
            Refused: rounding alone takes more than a third of ``max_distance``; or ``max_distance`` is more than a
                third of the distance that a deletion moves the minimiser by: an untouched model could be "proved".
        """
        work, w = problem.double(), state.weights.double()
        floor = convex.rounding_floor(work, w, examples)
        if not floor <= max_distance / ROOM:
            raise Refused(
                f"Rounding alone takes more than a third of max_distance {max_distance:g}: the bound of an update is "
                f"(gradient norm + rounding) / weight_decay, and weight_decay is {problem.training.weight_decay:g}.",
                "Raise weight_decay, or max_distance and noise_std together, or scale the features down.",
            )
        least = ROOM * max_distance
        moved = partial(_displacements, work, w, examples)
        if not (min(moved(FEW)) >= least or statistics.median(moved(MANY)) >= least):
            raise Refused(
                f"max_distance {max_distance:g} is more than a third of what forgetting one person changes: an update "
                "that forgot no person would come close to meeting it.",
                "Lower max_distance and noise_std together.",
            )
        if tangent_of(work) is None:
            return {}
        x, y = (part.to(work.device) for part in problem.recipe.holdout_tensors)
        around = DRAWN if drawn_start(problem) else GIVEN
        return {AROUND: around, "accuracy_there": work.accuracy(work.initial(), x, y)}

    def refine(
        self,
        problem: Problem,
        forgotten: Forgotten,
        retain: Examples | None,
        max_distance: float,
        constants: Mapping[str, float],
    ) -> tuple[Tensor, float]:
        """Run Newton's method on the retained samples until the bound is at most ``max_distance``, or no weight moves.

        Returns float64 weights (d,). Where the bound stays above, they are the last that were reached.
        """
        work = problem.double()
        w = forgotten.state.weights.to(device=work.device, dtype=torch.float64)
        return convex.approach(work, w, _read(retain), max_distance, self.denominator)

    def distance(
        self, problem: Problem, forgotten: Forgotten, retain: Examples | None, constants: Mapping[str, float]
    ) -> float:
        """Return the bound at the weights, rounding included. Raises Refused as ``convex.distance_bound`` does."""
        return convex.distance_bound(problem.double(), forgotten.state.weights, _read(retain), self.denominator)


def _displacements(problem: Problem, w: Tensor, examples: Examples, count: int) -> list[float]:
    """Return those by so many people, drawn by the training's seed, each alone; infinite for a single person."""
    names = sorted(examples.people.distinct())
    if len(names) < 2:
        return [math.inf]
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(problem.training.seed))
    drawn = [examples.people.where(names[place].__eq__) for place in order[:count].tolist()]
    leaving = [examples.positions[hers.to(examples.positions.device)] for hers in drawn]
    return convex.displacements(problem, w, examples, leaving)


def _read(retain: Examples | None) -> Examples:
    if retain is None:
        raise ValueError("The guarantee proved reads the retained samples; they were not loaded.")
    return retain
