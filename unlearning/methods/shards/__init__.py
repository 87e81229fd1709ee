"""Train one model for each shard of the people, and publish them as one: Bourtoule et al., "Machine unlearning", 2021.

A hash of the seed and the person's name says which shard and which slice the person is in. A shard's model is trained
on its first slice, then on its first two, and so on, with a checkpoint after each. To forget somebody, their shard
alone is trained again, from the checkpoint before their slice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.methods.shards.ensemble import EnsembleOf
from unlearning.model.fit import PHASES, REUSED, Phase, checkpoints_of, fit, with_checkpoints
from unlearning.model.method import Method
from unlearning.model.own_training import Fitted, seed_of
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Forgotten, Json, Learned, Need, Progress, State, retained, silent


@dataclass(frozen=True)
class Shards(Method):
    """Train ``shards`` models, each on its own people; forget by training one of them again from a checkpoint.

    Args:
        shards: S, how many models. An update repeats one of them for each shard with a forgotten person.
        slices: R, how many parts each shard is trained in. A phase makes 2 / (R + 1) of the usual number of passes,
            so that all phases of a shard together cost as much as one training on it.

    Raises:
        ValueError: fewer than two shards, or no slice.
    """

    name: ClassVar[str] = "shards"
    exact: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    assumptions: ClassVar[tuple[str, ...]] = (
        *REUSED,
        "Anyone who compares two versions sees which shard changed; the changed shard names a set of people.",
    )
    checked: ClassVar[tuple[str, ...]] = PHASES
    secret_state: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})
    shards: int = 5
    slices: int = 4

    def __post_init__(self) -> None:
        if self.shards < 2 or self.slices < 1:
            raise ValueError(
                f"shards is {self.shards} and slices is {self.slices}: there must be at least 2 shards and 1 slice."
            )

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with an ensemble of ``shards`` of its models in place of one."""
        return replace(recipe, model=EnsembleOf(recipe, self.shards))

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Train every shard. Raises Refused where the training ends in a minimiser."""
        return self._trained(problem, examples, {}, progress)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Train the shards with forgotten people again. An empty set returns ``state`` itself."""
        if not forget:
            return Forgotten(state)
        kept = retained(forget, retain)
        first = self._first_slices(problem, forget.people)
        usable = {
            shard: checkpoints_of(state, f"shard {shard}")[: first.get(shard, self.slices)]
            for shard in range(self.shards)
        }
        evidence: dict[str, Json] = {"slices": sum(self.slices - place for place in first.values())}
        return Forgotten(self._trained(problem, kept, usable, silent), evidence)

    def repeats(self, problem: Problem, people: Collection[str]) -> float:
        """Return the share of the steps in the slices that ``people`` are in.

        Slice r of R is trained on r / R of a shard's people, for 2 / (R + 1) of the passes.
        """
        steps = 0.0
        for first in self._first_slices(problem, people).values():
            steps += sum(range(first + 1, self.slices + 1))
        return steps / (self.shards * self.slices * (self.slices + 1) / 2)

    def expected_repeats(self, requests: int) -> float:
        """Return the sum over slices r of 2 r / (R (R + 1)) (1 - (1 - r / (R S))^requests), the same for each shard.

        Slice r of a shard is repeated where at least one of them is in its first r slices.
        """
        slices = range(1, self.slices + 1)
        hit = (r * (1.0 - (1.0 - r / (self.slices * self.shards)) ** requests) for r in slices)
        return sum(hit) / sum(slices)

    def _first_slices(self, problem: Problem, people: Collection[str]) -> dict[int, int]:
        """Return the shards that hold any of ``people``, each with the first slice that does."""
        first: dict[int, int] = {}
        for person in people:
            shard, part = self._place(problem, person)
            first[shard] = min(part, first.get(shard, self.slices))
        return first

    def _trained(
        self, problem: Problem, examples: Examples, usable: Mapping[int, list[Fitted]], progress: Progress
    ) -> State:
        """Train what comes after the ``usable`` checkpoints of each shard. A shard without people keeps its start."""
        member = member_of(problem)
        places = torch.tensor([self._place(problem, person) for person in examples.people])
        shard_of, slice_of = places.to(examples.positions.device).unbind(dim=1)
        weights: dict[str, Tensor] = {}
        state = State(torch.empty(0))
        for shard in range(self.shards):
            fitted = list(usable.get(shard, ()))
            for part in range(len(fitted), self.slices):
                progress((shard + part / self.slices) / self.shards)
                here = examples.only(examples.positions[(shard_of == shard) & (slice_of <= part)])
                phase = Phase(f"shard {shard} slice {part}", 2.0 / (self.slices + 1))
                before = fitted[-1] if fitted else None
                fitted.append(fit(member, here, phase, before) if len(here) else before or Fitted(member.initial()))
            state = with_checkpoints(state, fitted, f"shard {shard}")
            weights |= {f"members.{shard}.{name}": value for name, value in member.tensors(fitted[-1].weights).items()}
        progress(1.0)
        return replace(state, weights=problem.flatten(weights))

    def _place(self, problem: Problem, person: str) -> tuple[int, int]:
        """Return the shard and the slice that the person is in."""
        return seed_of(problem, "shard", person) % self.shards, seed_of(problem, "slice", person) % self.slices


def member_of(problem: Problem) -> Problem:
    """Return the problem of one model of the ensemble."""
    ensemble = problem.recipe.model
    if not isinstance(ensemble, EnsembleOf):
        raise TypeError("shards works on the recipe that Shards.recipe returns.")
    return Problem(ensemble.member, problem.device, problem.dtype)


METHOD = Shards
