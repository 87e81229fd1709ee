"""The types that pass between a training, a method and an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from unlearning.columns import Column

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Progress: TypeAlias = Callable[[float], None]

BLOCK_BYTES = 2**26
"""of samples that are read at once where not all of them are held (64 MiB)"""
PICKED_BYTES = 2**28
"""of samples that are not all held and are read together, as a batch of a training (256 MiB)"""
NO_ROWS = torch.empty(0, dtype=torch.int64)
NOBODY: Column[tuple[str, ...]] = Column(NO_ROWS, ())


def silent(share: float) -> None:
    """Ignore the progress; ``share`` is in [0, 1]."""


class Need(StrEnum):
    """What a method must be given beyond the weights."""

    TRAJECTORY = "trajectory"
    RETAINED = "retained samples"
    FORGOTTEN = "forgotten samples"
    VECTORS = "everyone's vectors"
    """each update changes the remaining vectors too"""


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


class RecipeError(ValueError):
    """A recipe that cannot be trained as written.

    Args:
        what: one sentence: what is wrong and which value.
        hint: what to do instead.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what} {hint}")
        self.what = what
        self.hint = hint


class Ineffective(Refused):
    """The method serves models like this one, but not with these data; the policy's fallback may take its place.

    What is left of the distance to a retraining was measured and is too much, too few people are left, or this update
    is beyond the method's own tolerance.
    """


class VectorsMissing(Refused):
    """People to be forgotten have no vector any more.

    Args:
        count: how many of them.
        people: how many were asked for.
    """

    def __init__(self, count: int, people: int) -> None:
        super().__init__(f"{count} of {people} people have no vector.", "Use retrain for them.")
        self.count = count


@runtime_checkable
class SampleRows(Protocol):
    """Inputs and targets of samples that are read by the number of the row."""

    def __len__(self) -> int: ...

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row once it is read: its input and its target."""

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs (m, ...) and targets (m, ...) of each part, which is (m,) int64 row numbers on the CPU."""


@dataclass(frozen=True)
class Tensors:
    """Rows that are in memory: inputs (n, ...) and targets (n, ...)."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def row_bytes(self) -> int:
        return -(-(self.inputs.nbytes + self.targets.nbytes) // max(1, len(self)))

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            if len(part) == len(self) and torch.equal(part, torch.arange(len(self))):
                yield self.inputs, self.targets  # without a copy
            else:
                rows = part.to(self.inputs.device)
                yield self.inputs[rows], self.targets[rows]


def block_of(rows: SampleRows) -> int:
    """Return how many rows are read at once where not all are held."""
    return max(1, BLOCK_BYTES // max(1, rows.row_bytes))


@dataclass(frozen=True)
class Examples:
    """Samples by their position in the manifest.

    ``positions`` is (n,) int64, strictly increasing, on the work device; sample i is row ``index[i]`` of ``rows``
    ((n,) int64 on the CPU; left out: row i). ``people`` names, for each sample, its owner: all samples of one
    name are forgotten together. A name is that of a person, of people with shared samples, or, where a policy
    forgets samples, for one sample. ``subjects`` gives the persons themselves, for each sample one or several; where
    it is left out, ``people`` are the persons.

    Raises:
        ValueError: there is not one name for each sample.
    """

    positions: Tensor
    rows: SampleRows
    people: Column[str]
    subjects: Column[tuple[str, ...]] = field(default_factory=lambda: NOBODY)
    index: Tensor = field(default=NO_ROWS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "people", Column.of(self.people))
        if self.subjects is NOBODY:
            object.__setattr__(self, "subjects", self.people.map(lambda person: (person,)))
        if self.index is NO_ROWS:
            object.__setattr__(self, "index", torch.arange(len(self.rows)))
        if not len(self.people) == len(self.subjects) == len(self.index) == len(self):
            raise ValueError(f"{len(self)} examples have {len(self.people)} names and {len(self.index)} rows.")

    @classmethod
    def of(cls, positions: Tensor, inputs: Tensor, targets: Tensor, people: Iterable[str]) -> Examples:
        """Return the examples of tensors (n, ...) on the work device, each of one person."""
        return cls(positions, Tensors(inputs, targets), Column.of(people))

    def __len__(self) -> int:
        return int(self.positions.numel())

    @property
    def held(self) -> bool:
        """Tell whether the samples are in memory; if not, only ``blocks`` and ``pick`` read them."""
        return isinstance(self.rows, Tensors)

    @property
    def inputs(self) -> Tensor:
        """Return the inputs (n, ...) on the work device. Raises Refused where the samples are not held in memory."""
        return self._whole[0]

    @property
    def targets(self) -> Tensor:
        """Return the targets (n, ...) on the work device. Raises Refused where the samples are not held in memory."""
        return self._whole[1]

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor]:
        if not self.held:
            raise self._too_many(len(self))
        return next(self._read([self.index]))

    def _too_many(self, count: int) -> Refused:
        size = count * self.rows.row_bytes / 1e9
        return Refused(
            f"{count} of the {len(self)} samples ({size:.1f} GB) are asked for at once, and they are read by blocks.",
            "Use newton on a linear head with Training(epochs=0, converge=...), or raise EXPUNGE_SAMPLE_BYTES where "
            "the machine has the memory.",
        )

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs (m, ...) and targets (m, ...) on the work device, all samples once, in any order.

        Samples that are held in memory are one block.
        """
        if self.held:
            yield self.inputs, self.targets
            return
        yield from self._read(torch.split(self.index.sort().values, block_of(self.rows)))

    def pick(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the examples at ``places`` (m,) among these, in that order.

        Raises:
            Refused: they are not held in memory, and take more than ``PICKED_BYTES``.
        """
        if self.held:
            return self.inputs[places], self.targets[places]
        if len(places) * self.rows.row_bytes > PICKED_BYTES:
            raise self._too_many(len(places))
        return next(self._read([self.index[places.cpu()]]))

    def _read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, targets in self.rows.read(parts):
            yield inputs.to(self.positions.device), targets.to(self.positions.device)

    def places(self, positions: Tensor) -> Tensor:
        """Return where the examples at ``positions`` lie among these, in that order; unknown positions are left out."""
        wanted = positions.to(self.positions.device)
        found = torch.searchsorted(self.positions, wanted).clamp(max=max(len(self) - 1, 0))
        return found[self.positions[found] == wanted] if len(self) else found[:0]

    def only(self, positions: Tensor) -> Examples:
        """Return the examples at ``positions``; unknown positions are ignored."""
        return self._keep(self._at(positions))

    def without(self, positions: Tensor) -> Examples:
        """Return the examples at other positions."""
        return self._keep(~self._at(positions))

    def _at(self, positions: Tensor) -> Tensor:
        mask = torch.zeros(len(self), dtype=torch.bool, device=self.positions.device)
        mask[self.places(positions)] = True
        return mask

    def _keep(self, mask: Tensor) -> Examples:
        here = mask.cpu()
        people, subjects = self.people.take(here), self.subjects.take(here)
        return Examples(self.positions[mask], self.rows, people, subjects, self.index[here]).compact()

    def compact(self) -> Examples:
        """Return the same examples, holding in memory these rows and names alone."""
        people, subjects = self.people.compact(), self.subjects.compact()
        if not self.held:
            return Examples(self.positions, self.rows, people, subjects, self.index)
        return Examples(self.positions, Tensors(self.inputs, self.targets), people, subjects)


@dataclass(frozen=True)
class Trajectory:
    """What happened in a training: enough to compute every w_t again.

    ``batches[t]`` holds the manifest positions of step t (int64, on the CPU); ``rates[t]`` is eta_t, ``scales[t]``
    is s_t. ``checkpoints[e]`` is w (d,) before step ``starts[e]``; the last one is w_T, with ``starts[-1] = T``.
    """

    batches: tuple[Tensor, ...]
    rates: tuple[float, ...]
    scales: tuple[float, ...]
    checkpoints: tuple[Tensor, ...]
    starts: tuple[int, ...]

    def __post_init__(self) -> None:
        steps = len(self.batches)
        if not len(self.rates) == len(self.scales) == steps:
            raise RecipeError(
                f"The trajectory has {steps} batches, {len(self.rates)} rates and {len(self.scales)} scales.",
                "Record one of each for every step.",
            )
        if len(self.checkpoints) != len(self.starts) or not self.starts or self.starts[0] != 0:
            raise RecipeError("The trajectory lacks its first checkpoint.", "Record the weights before step 0.")

    def __len__(self) -> int:
        """Return T, the number of steps."""
        return len(self.batches)

    def tensors(self) -> dict[str, Tensor]:
        """Return tensors that a state can hold; ``from_tensors`` gives the same trajectory back."""
        return {
            "batches": torch.cat(self.batches) if self.batches else torch.empty(0, dtype=torch.int64),
            "sizes": torch.tensor([len(batch) for batch in self.batches], dtype=torch.int64),
            "rates": torch.tensor(self.rates, dtype=torch.float64),
            "scales": torch.tensor(self.scales, dtype=torch.float64),
            "checkpoints": torch.stack(self.checkpoints),
            "starts": torch.tensor(self.starts, dtype=torch.int64),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Trajectory:
        return cls(
            batches=tuple(torch.split(tensors["batches"].cpu(), tensors["sizes"].tolist())),
            rates=tuple(tensors["rates"].tolist()),
            scales=tuple(tensors["scales"].tolist()),
            checkpoints=tuple(tensors["checkpoints"].unbind()),
            starts=tuple(tensors["starts"].tolist()),
        )


@dataclass(frozen=True)
class Learned:
    """What one training left behind. ``weights`` is (d,); no trajectory means: trained elsewhere."""

    weights: Tensor
    trajectory: Trajectory | None = None


class VectorSource(Protocol):
    """Where the vectors that a method keeps for people are read from, when they are asked for."""

    def read(self, people: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield each of ``people`` with a vector and the vector, (k,), in sorted order; a few are held at a time."""


class Vectors(dict[str, Tensor]):
    """Vectors by person, in memory."""

    def read(self, people: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield each of ``people`` with a vector, in sorted order."""
        return ((person, self[person]) for person in sorted(people) if person in self)


@dataclass(frozen=True)
class State:
    """What a method keeps between updates; never published.

    ``weights`` is w~, (d,), before noise. ``tensors`` and ``facts`` are stored sealed as one artifact.
    ``vectors`` maps a person to their vector, (k,), where this step made one: ``prepare`` returns all, and
    ``forget`` of a method that needs ``Need.VECTORS`` those of the remaining people, changed. The service keeps each as
    a sealed row and hands them to ``forget`` as ``ForgetSet.vectors``.
    """

    weights: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    vectors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ForgetSet:
    """The samples to forget in this update.

    ``people`` and ``positions`` (sorted) say the same in two ways. ``examples`` holds their samples, or
    None where the method does not need them. ``vectors`` gives what the method keeps for people.
    """

    people: frozenset[str]
    positions: tuple[int, ...]
    examples: Examples | None = None
    vectors: VectorSource = field(default_factory=Vectors)

    def __bool__(self) -> bool:
        return bool(self.positions)


def retained(forget: ForgetSet, retain: Examples | None) -> Examples:
    """Return the retain set, for a method that cannot do without.

    Raises:
        Refused: it is not given, it is empty, or a sample in it is to be forgotten.
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
