"""Train one model for each shard of the people, and publish them as one: Bourtoule et al., "Machine unlearning", 2021.

A hash of the seed and of a sample's people says which shard the sample is in. To forget a person, the shards that hold
one of their samples are trained again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.model.descent.fitted import Fitted
from unlearning.model.method import Method
from unlearning.model.phases import REUSED, Phase, fresh_of, seed_of, within
from unlearning.model.problem import Problem
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Learned,
    Need,
    Progress,
    State,
    retained,
    silent,
)


@dataclass(frozen=True)
class Merge:
    """The part that makes one file of the members: it starts from them, by their numbers, and looks at no sample."""


@dataclass(frozen=True)
class Shards(Method):
    """Train ``shards`` models, each on its own people; forget by training those of the person again.

    Args:
        shards: S, how many models. An update repeats one of them for each shard with a forgotten sample.

    Raises:
        ValueError: fewer than two shards.
    """

    name: ClassVar[str] = "shards"
    exact: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    assumptions: ClassVar[tuple[str, ...]] = (
        *REUSED,
        "Anyone who compares two versions sees which shard changed; the changed shard names a set of people.",
    )
    secret_state: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})
    shards: int = 5

    def __post_init__(self) -> None:
        if self.shards < 2:
            raise ValueError(f"shards is {self.shards}: there must be at least 2.")

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Train every shard. Raises Refused as ``fresh_of``."""
        return self._trained(problem, examples, self.start(), progress)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Train the shards with forgotten samples again. An empty set returns ``state`` itself."""
        if not forget:
            return Forgotten(state)
        kept, start = retained(forget, retain), self._without(state, forget.positions)
        return Forgotten(self._trained(problem, kept, start, silent), {"phases": len(self._unfinished(start))})

    def afresh(self, state: State) -> State:
        trained = {_of(shard) for shard in range(self.shards)}
        return replace(state, tensors={name: value for name, value in state.tensors.items() if name not in trained})

    def start(self) -> State:
        """Return what a training of all shards starts from: none is trained."""
        return State(torch.empty(0))

    def chains(self, problem: Problem, examples: Examples, start: State) -> dict[int, list[tuple[Phase, Examples]]]:
        """Return what is trained of each shard that ``start`` lacks: one part, with its samples."""
        shard_of = self._shards_of(problem, examples)
        return {
            shard: [(Phase(_of(shard)), examples.only(examples.positions[shard_of == shard]))]
            for shard in self._unfinished(start)
        }

    def repeats(self, problem: Problem, subjects: Collection[tuple[str, ...]]) -> float:
        """Return the share of the shards that hold one of these samples."""
        return len({self._shard_of(problem, people) for people in subjects}) / self.shards

    def expected_repeats(self, requests: int) -> float:
        """Return the expected share of the shards that so many random people are in."""
        return 1.0 - (1.0 - 1.0 / self.shards) ** requests

    def _without(self, state: State, gone: Sequence[int]) -> State:
        """Return the shards that hold none of the samples ``gone``."""
        positions, shard_of = state.tensors["shard_of"]
        changed = set(shard_of[torch.isin(positions, torch.tensor(gone, device=positions.device))].tolist())
        names = (_of(shard) for shard in range(self.shards) if shard not in changed)
        return State(torch.empty(0), {name: state.tensors[name] for name in names if name in state.tensors})

    def _unfinished(self, start: State) -> list[int]:
        return [shard for shard in range(self.shards) if _of(shard) not in start.tensors]

    def _trained(self, problem: Problem, examples: Examples, start: State, progress: Progress) -> State:
        """Train what ``start`` lacks, and make one file of all. A shard without people has no byte."""
        chains, train = self.chains(problem, examples, start), fresh_of(problem)
        train.announce(list(chains.values()))
        trained = dict(start.tensors)
        for place, (shard, ((part, here),)) in enumerate(chains.items()):
            share = within(progress, place / len(chains), 1.0 / len(chains))
            trained[_of(shard)] = train(part, here, None, share).weights if len(here) else problem.initial()
        progress(1.0)
        members = Fitted(problem.initial(), {str(shard): trained[_of(shard)] for shard in range(self.shards)})
        merged = train(Merge(), examples, members, silent)
        shard_of = torch.stack([examples.positions, self._shards_of(problem, examples)])
        return State(merged.weights, {"shard_of": shard_of, **trained})

    def _shards_of(self, problem: Problem, examples: Examples) -> Tensor:
        """Return the shard of each sample, (n,) int64; it follows from the seed and the sample's people alone."""
        shard_of = {people: self._shard_of(problem, people) for people in set(examples.subjects)}
        return torch.tensor([shard_of[people] for people in examples.subjects]).to(examples.positions.device)

    def _shard_of(self, problem: Problem, people: tuple[str, ...]) -> int:
        return seed_of(problem, "shard", *people) % self.shards


def _of(shard: int) -> str:
    """Return the name of a shard's training, and of what it left in a state."""
    return f"shard {shard}"


METHOD = Shards
