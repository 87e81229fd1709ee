"""Measured error bounds that hold for a whole stream of updates: guarantee `calibrated`.

Draw m random deletion orders over people; run the method update by update along each; really retrain at every size
of a grid. With a shape b(s) fixed beforehand, ``score_j = max_s error_j(s) / b(s)`` and q the k-th smallest score,
``k = m + 1 - floor((m + 1) alpha)``: if the real order is exchangeable with the drawn ones, its score is at most q with
probability at least 1 - alpha (split conformal prediction: Vovk, Gammerman and Shafer 2005, section 4), and then
``error(s) <= q b(s)`` at every size of the grid at once.

Each order is one pure function, so that workers can share the orders out and resume; ``calibrate`` combines them. The
errors, the scores and q are computed from all data: they are sealed, never published. What is public is
the cap that an operator chose, and whether q allows it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by, release
from unlearning.types import Examples, RecipeError, Refused, State


@dataclass(frozen=True)
class Design:
    """What is fixed before anything is measured.

    Args:
        sizes: the grid, increasing: how many people in all are forgotten after each update. Validity ends at the last.
        alpha: the share of streams that may fail, in (0, 1).
        orders: m. At least 1/alpha - 1 of them: 19 for 5 %, 99 for 1 %.
        power: b(s) = (s / largest size) ** power; 0 gives one bound for all sizes.
        seed: of the orders.

    Raises:
        Refused: a value outside its range, or too few orders for alpha.
    """

    sizes: tuple[int, ...]
    alpha: float = 0.05
    orders: int = 19
    power: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        increasing = list(self.sizes) == sorted(set(self.sizes))
        if not self.sizes or not increasing or self.sizes[0] < 1:
            raise Refused(f"sizes is {self.sizes}.", "Give increasing whole numbers of people, from 1 on.")
        if not 0 < self.alpha < 1:
            raise Refused(f"alpha is {self.alpha}.", "It must lie between 0 and 1.")
        if not 0 <= self.power < math.inf:
            raise Refused(f"power is {self.power}.", "It must be 0 or more.")
        if self.rank > self.orders:
            needed = math.ceil(1 / _exact(self.alpha)) - 1
            raise Refused(f"{self.orders} orders cannot show alpha {self.alpha}.", f"Draw at least {needed}.")

    @property
    def rank(self) -> int:
        """Return k, in integers: which of the sorted scores (from 1) is q."""
        return self.orders + 1 - math.floor((self.orders + 1) * _exact(self.alpha))

    def shape(self, size: int) -> float:
        """Return b(s)."""
        return float((size / self.sizes[-1]) ** self.power)

    def order(self, people: Sequence[str], index: int) -> tuple[str, ...]:
        """Return the ``index``-th order: people to delete in turn, uniform over all. It is the same each time."""
        names = sorted(set(people))
        if self.sizes[-1] >= len(names):
            raise Refused(
                f"The largest size is {self.sizes[-1]} and there are {len(names)} people.",
                "Leave people to train on.",
            )
        digest = hashlib.sha256(f"{self.seed}:{index}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        drawn = torch.randperm(len(names), generator=generator)[: self.sizes[-1]]
        return tuple(names[place] for place in drawn.tolist())


@dataclass(frozen=True)
class OrderErrors:
    """What one order showed: at each size the distance to a real retraining of the weights that the method gave,
    and of untouched ones."""

    errors: tuple[float, ...]
    untouched: tuple[float, ...]


def errors_along(
    problem: Problem,
    method: Method,
    state: State,
    examples: Examples,
    order: Sequence[str],
    *,
    sizes: Sequence[int],
    reference: str = "renormalised",
) -> OrderErrors:
    """Return ||w~ - w_retrained||, and ||w - w_retrained|| of the weights that ``state`` has, at each size.

    The people in ``order`` are forgotten, one update for each size. ``state`` is what ``method.prepare`` gave for
    ``examples``. Where the method or the retraining refuses, or the weights are not finite, that size and all later
    ones count as infinite: an order is never left out.
    """

    def release_next(start: State, gone: int, size: int) -> tuple[State, Tensor]:
        batch, so_far = forget_set(examples, order[gone:size]), forget_set(examples, order[:size])
        retain = left_by(examples, so_far)
        generator = torch.Generator().manual_seed(size)
        after = release(method, problem, start, batch, retain, generator=generator).state
        return after, train(problem, retain, planned=examples.positions, reference=reference).weights

    return errors_of(state, sizes, release_next)


def errors_of(
    state: State, sizes: Sequence[int], release_next: Callable[[State, int, int], tuple[State, Tensor]]
) -> OrderErrors:
    """Return what ``errors_along`` does, of an order whose updates and retrainings are made elsewhere.

    ``release_next``: (a state, how many people are forgotten in it, how many in the next one) -> the next state, and
    the weights (d,) of a retraining without these people. A distance is measured here, of the weights that it returns.
    """
    errors: list[float] = []
    untouched: list[float] = []
    start, gone = _on_cpu(state.weights), 0
    for size in sizes:
        try:
            state, retrained = release_next(state, gone, size)
        except (Refused, RecipeError):
            break
        if retrained.shape != start.shape or state.weights.shape != start.shape:
            break
        error = float((_on_cpu(state.weights) - _on_cpu(retrained)).norm())
        if not math.isfinite(error):
            break
        errors.append(error)
        untouched.append(float((start - _on_cpu(retrained)).norm()))
        gone = size
    missing = (math.inf,) * (len(sizes) - len(errors))
    return OrderErrors((*errors, *missing), (*untouched, *missing))


def _on_cpu(weights: Tensor) -> Tensor:
    """Return weights (d,) in float64 on the CPU: a world's come from there, and a state's from the device."""
    return weights.double().cpu()


@dataclass(frozen=True)
class Calibrated:
    """What a calibration showed. ``quantile`` is q: sealed, like every bound that follows from it."""

    design: Design
    quantile: float

    def bound(self, size: int) -> float:
        """Return the bound when ``size`` people in all are forgotten. Between grid sizes: that of the next.

        Raises:
            Refused: more people than were ever measured.
        """
        covering = [each for each in self.design.sizes if each >= size]
        if not covering or size < 0:
            raise Refused(
                f"{size} people are forgotten and the calibration ends at {self.design.sizes[-1]}.",
                "Retrain, or calibrate with larger sizes.",
            )
        return 0.0 if size == 0 else self.quantile * self.design.shape(covering[0])

    def largest(self, max_distance: float) -> int:
        """Return the greatest size of the grid with a bound of at most ``max_distance``; 0 where none has."""
        return max((size for size in self.design.sizes if self.bound(size) <= max_distance), default=0)

    def assumptions(self) -> tuple[str, ...]:
        """List what a claim with this guarantee assumes. Computed from the design alone."""
        design = self.design
        sizes = ", ".join(map(str, design.sizes))
        return (
            f"Confidence {1 - design.alpha:g}, over {design.orders} calibration orders and the order of the requests.",
            "The order of the requests is exchangeable with a uniformly random order of people and independent of the "
            "updates. Targeted, adaptive or unusual requests (one class only, the most influential people) are not "
            "covered.",
            f"At most {design.sizes[-1]} people are forgotten in the generation.",
            f"Measured after {sizes} people; between these, the distance is assumed to grow with the number forgotten, "
            "and not to depend on how updates are cut.",
        )


def calibrate(design: Design, errors: Mapping[int, Sequence[float]]) -> Calibrated:
    """Combine the errors of the orders 0..m-1, by index, each as ``errors_along`` gave them.

    Raises:
        Refused: an order is missing or too many, errors do not match the grid, or q is infinite.
    """
    wanted = set(range(design.orders))
    if set(errors) != wanted:
        missing, extra = sorted(wanted - set(errors)), sorted(set(errors) - wanted)
        raise Refused(f"Orders are missing {missing[:5]} or unplanned {extra[:5]}.", "Measure exactly those planned.")
    scores = sorted(score(design, errors[index]) for index in wanted)
    quantile = scores[design.rank - 1]
    if not math.isfinite(quantile):
        raise Refused("The method fails along too many orders to give a bound.", "Use smaller sizes or another method.")
    return Calibrated(design, quantile)


def score(design: Design, errors: Sequence[float]) -> float:
    """Return the maximum over the grid of error(s) / b(s)."""
    if len(errors) != len(design.sizes) or any(not error >= 0 for error in errors):
        raise Refused(f"{len(errors)} errors are given for {len(design.sizes)} sizes, or one is not a distance.", "")
    return max(error / design.shape(size) for error, size in zip(errors, design.sizes, strict=True))


def _exact(alpha: float) -> Fraction:
    """Return the decimal that was written, not its binary neighbour: 0.29 * 100 is 29."""
    return Fraction(str(alpha))
