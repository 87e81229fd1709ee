"""What a method is: the types that pass between a training, a method and an update.

A method is a frozen object whose fields are its hyperparameters. It is called twice in the life of a
training: ``prepare`` once, and ``forget`` once per update. Both are pure: no I/O, no clock, no global
random state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from unlearning.model.problem import Problem
    from unlearning.model.training import Trajectory

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Progress: TypeAlias = Callable[[float], None]


class Need(StrEnum):
    """What a method must be given beyond the weights."""

    TRAJECTORY = "trajectory"
    RETAINED = "retained samples"
    FORGOTTEN = "forgotten samples"
    VECTORS = "everyone's vectors"
    """each update changes the vectors of those who stay too"""


class Refused(ValueError):
    """A method cannot serve this model or this forget set.

    Args:
        what: one sentence: what happened and which value.
        hint: what to do instead.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what} {hint}")
        self.what = what
        self.hint = hint


class Ineffective(Refused):
    """The method could serve this model, but it leaves too much of the distance to a retraining, as measured."""


class Unsuited(Refused):
    """The method cannot serve this model, whatever its options: which others can has to be seen on the model."""


class OutOfTolerance(Refused):
    """The method could do this release, but not as closely as its tolerance asks: the policy's fallback applies.

    Nothing has changed. The message holds no figure, because it may be shown and the figure may not.
    """


@dataclass(frozen=True)
class Examples:
    """Samples by their position in the manifest.

    ``positions`` is (n,) int64, strictly increasing; ``inputs`` (n, ...) and ``targets`` (n, ...) are on
    the work device; ``holders`` names, for each sample, whose vector it is part of: all samples of one
    holder are forgotten together. A holder is a person, a set of people who share samples, or (at sample
    granularity) a single sample.
    """

    positions: Tensor
    inputs: Tensor
    targets: Tensor
    holders: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.positions.numel())

    def only(self, positions: Tensor) -> Examples:
        """The examples whose position is among ``positions``; unknown positions are ignored."""
        return self._keep(torch.isin(self.positions, positions.to(self.positions.device)))

    def without(self, positions: Tensor) -> Examples:
        """The examples whose position is not among ``positions``."""
        return self._keep(~torch.isin(self.positions, positions.to(self.positions.device)))

    def _keep(self, mask: Tensor) -> Examples:
        kept = tuple(holder for holder, keep in zip(self.holders, mask.tolist(), strict=True) if keep)
        return Examples(self.positions[mask], self.inputs[mask], self.targets[mask], kept)


@dataclass(frozen=True)
class Learned:
    """What one training left behind. ``weights`` is (d,); no trajectory means: trained elsewhere."""

    weights: Tensor
    trajectory: Trajectory | None = None


@dataclass(frozen=True)
class State:
    """What a method keeps between updates; never published.

    ``weights`` is w~, (d,), before noise. ``tensors`` and ``facts`` are stored sealed as one artifact.
    ``vectors`` maps a holder to its vector(s), (d,): the service keeps each as a sealed row, so ``forget``
    is given those of the forget set alone and returns none of them. A method that needs ``Need.VECTORS`` is given
    everyone's, and returns those of who stays, changed. Going once over ``items()`` is cheap and holds few of them at a
    time; every other way of reading them may not be.
    """

    weights: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    vectors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ForgetSet:
    """Who is forgotten in this release.

    ``holders`` and ``positions`` (sorted) say the same in two ways. ``examples`` holds their samples, or
    None where the method does not need them.
    """

    holders: frozenset[str]
    positions: tuple[int, ...]
    examples: Examples | None = None

    def __bool__(self) -> bool:
        return bool(self.positions)


def retained(forget: ForgetSet, retain: Examples | None) -> Examples:
    """The retain set, for a method that cannot do without.

    Raises:
        Refused: it is not given, nobody is in it, or someone in it is to be forgotten.
    """
    if retain is None:
        raise Refused("The retain set is not readable.", "Use recollection or safe, which do not need it.")
    if len(retain) == 0:
        raise Refused("Nobody is left to retain.", "Retire the model instead.")
    if len(retain.only(torch.tensor(forget.positions, dtype=torch.int64))) > 0:
        raise Refused("The retain set holds samples that are to be forgotten.", "Leave them out.")
    return retain


@dataclass(frozen=True)
class Forgotten:
    """An update before certification: the new state, and measurements for operators (sealed, never published)."""

    state: State
    evidence: Mapping[str, Json] = field(default_factory=dict)


class Method(Protocol):
    """A way to forget. ``retain`` is every sample that stays after this release, None where not needed."""

    name: ClassVar[str]

    @property
    def needs(self) -> frozenset[Need]:
        """What is needed at forget time (RETAINED, FORGOTTEN, VECTORS) or at prepare (TRAJECTORY)."""

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = ...) -> State:
        """Compute what the method keeps. Raises Refused where it cannot serve this model."""

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Forget. An empty set returns ``state`` itself. Raises Refused where it cannot."""


Reader: TypeAlias = "Callable[[tuple[str, ...]], Mapping[str, Tensor]]"


@runtime_checkable
class Divisible(Protocol):
    """A method whose vectors can be computed for some holders at a time, on machines that share nothing."""

    def length(self, problem: Problem) -> int:
        """How many numbers each holder's vector has at least."""

    def divides(self, problem: Problem, learned: Learned) -> bool:
        """Whether this training can be prepared in parts. Raises Refused where it cannot be prepared at all."""

    def part(
        self, problem: Problem, examples: Examples, learned: Learned, holders: Sequence[str], progress: Progress = ...
    ) -> dict[str, Tensor]:
        """The vectors of ``holders``; ``examples`` are everyone's."""

    def complete(
        self, problem: Problem, examples: Examples, learned: Learned, read: Reader, progress: Progress = ...
    ) -> State:
        """What ``prepare`` returns, without its vectors, once all are there; ``read`` gives those of some holders."""
