"""What the comparators share: they are handed both the retained and the forgotten samples, and keep weights alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import drawn, scale_of
from unlearning.types import Examples, ForgetSet, Forgotten, Learned, Need, Progress, Refused, State, retained, silent


class Comparator(Method):
    """A baseline of another paper. Nothing is claimed of what it publishes, and it adds no noise of a policy."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED, Need.FORGOTTEN})

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Keep the weights. Raises Refused where the comparator is not defined for this model."""
        self.require_defined(problem)
        progress(1.0)
        return State(learned.weights)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Apply ``unlearn`` in the dtype of the weights. Raises Refused where it ends in NaN or infinity."""
        if not forget:
            return Forgotten(state)
        precise = problem.cast(state.weights.dtype)
        weights = self.unlearn(precise, state.weights, gone_of(forget), retained(forget, retain), generator)
        require_finite(self.name, weights)
        return Forgotten(replace(state, weights=weights))

    def require_defined(self, problem: Problem) -> None:
        """Raise Refused where the comparator is not defined for this model."""
        return

    @abstractmethod
    def unlearn(
        self, problem: Problem, w: Tensor, forget: Examples, retain: Examples, generator: torch.Generator
    ) -> Tensor:
        """Return the weights (d,) after forgetting, from those before, w (d,)."""


@dataclass(frozen=True)
class Walk(Comparator):
    """A comparator that walks from the trained weights in mini-batches.

    The papers tune these for their models; the defaults here are the same for all and tuned for none.

    Args:
        epochs: passes over the retained samples.
        batch_size: samples of a step.
        rate: the step size, over the training's first one.
    """

    epochs: int = 5
    batch_size: int = 128
    rate: float = 0.1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.rate > 0:
            raise ValueError(
                f"epochs, batch_size and rate are {self.epochs}, {self.batch_size} and {self.rate}. "
                "The first two must be at least 1, rate above 0."
            )

    def batches(self, examples: Examples, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the places of each batch among ``examples``, for so many passes."""
        seed = int(torch.randint(2**31, (1,), generator=generator))
        yield from drawn(torch.arange(len(examples)), self.batch_size, epochs, seed)

    def step(self, problem: Problem, w: Tensor, slope: Tensor) -> Tensor:
        """Return the weights (d,) after a step against ``slope`` (d,), clipped as the training clips."""
        return w - self.rate * problem.training.learning_rate * scale_of(problem, slope) * slope


class TwoSidedWalk(Walk):
    """A walk whose steps look at a batch of the retained and a batch of the forgotten samples."""

    def unlearn(
        self, problem: Problem, w: Tensor, forget: Examples, retain: Examples, generator: torch.Generator
    ) -> Tensor:
        steps = list(self.batches(retain, self.epochs, generator))
        others = cycle(list(self.batches(forget, 1, generator)))
        for number, (kept, gone) in enumerate(zip(steps, others, strict=False)):
            slope = self.slope(problem, w, retain.pick(kept), forget.pick(gone), number / len(steps))
            w = self.step(problem, w, slope)
        return w

    @abstractmethod
    def slope(
        self,
        problem: Problem,
        w: Tensor,
        kept: tuple[Tensor, Tensor],
        gone: tuple[Tensor, Tensor],
        done: float,
    ) -> Tensor:
        """Return the direction (d,) that a step is taken against. ``kept`` and ``gone`` are a batch each.

        ``done`` is the share of the steps before this one, from 0 to below 1.
        """


class StepFunction(Protocol):
    """A comparator that is one step: ``w + change``, computed from everyone's samples and who leaves."""

    def __call__(self, problem: Problem, w: Tensor, examples: Examples, gone: Sequence[int]) -> Any:
        """Return an object whose ``change`` is (d,). ``examples`` are everyone's, ``gone`` positions among them."""


STEP_PARAMETERS = ("problem", "w", "examples", "gone")


class _Stepping(Comparator):
    """A comparator made of a step function."""

    function: ClassVar[StepFunction]

    def unlearn(
        self, problem: Problem, w: Tensor, forget: Examples, retain: Examples, generator: torch.Generator
    ) -> Tensor:
        result: Tensor = (
            w + type(self).function(problem, w, _together(retain, forget), forget.positions.tolist()).change
        )
        return result


def stepping(name: str, function: StepFunction) -> type[Comparator]:
    """Return the comparator of that name that takes the function's step. It has no options."""
    made = type(name, (_Stepping,), {"name": name, "function": staticmethod(function)})
    return dataclass(frozen=True)(made)


def _together(one: Examples, other: Examples) -> Examples:
    positions = torch.cat([one.positions, other.positions])
    order = positions.argsort()
    inputs, targets = torch.cat([one.inputs, other.inputs]), torch.cat([one.targets, other.targets])
    people = [*one.people, *other.people]
    return Examples.of(positions[order], inputs[order], targets[order], [people[place] for place in order.tolist()])


def gone_of(forget: ForgetSet) -> Examples:
    """Return the forgotten samples. Raises Refused where they are not given."""
    if forget.examples is None:
        raise Refused("The forgotten samples are not readable.", "Evaluate on a recipe that still has them.")
    return forget.examples


def require_finite(name: str, w: Tensor) -> None:
    """Raise Refused where w (d,) holds NaN or infinity."""
    if not bool(torch.isfinite(w).all()):
        raise Refused(f"{name} ended in weights that are not finite.", "Lower its rate, or leave it out.")


def require_classes(name: str, problem: Problem) -> None:
    """Raise Refused where the model's outputs are no class scores under cross-entropy."""
    if problem.recipe.loss != "cross_entropy":
        raise Refused(f"{name} compares class probabilities, and the loss is not cross_entropy.", "Leave it out.")
