"""Train one model for each shard of the people, and publish them as one: Bourtoule et al., "Machine unlearning", 2021.

A hash of the seed and of a sample's people says which shard the sample is in. People join the training of their shard
in an order (``fit.JoinOrder``), with a checkpoint after each phase. To forget a person, the shards that
hold one of their samples are trained again, each from the last checkpoint that has not seen them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.accounting.certificate import Guarantee
from unlearning.artefact import Artefact
from unlearning.methods.shards.ensemble import EnsembleOf
from unlearning.methods.shards.head import answers_of, fit_head
from unlearning.methods.shards.merge import merged
from unlearning.model.fit import (
    PHASES,
    REUSED,
    JoinOrder,
    Phase,
    checkpoints_of,
    with_checkpoints,
    within,
    without_checkpoints,
)
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.user_code.own_training import seed_of
from unlearning.recipe import Recipe
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Json,
    Learned,
    Need,
    Progress,
    Refused,
    State,
    retained,
    silent,
)


@dataclass(frozen=True)
class Shards(Method):
    """Train ``shards`` models, each on its own people; forget by training one of them again from a checkpoint.

    Args:
        shards: S, how many models. An update repeats one of them for each shard with a forgotten sample.
        slices: R, how many equal parts of a shard join one after another. A phase makes 2 / (R + 1) of the usual
            number of passes, so that all phases of a shard together cost as much as one training on it. A model that
            is an ``Artefact`` has one slice.
        early_share, phase_shares: in place of ``slices``, the phases of a shard's people, as ``late`` has it.
        stacked: the share of the people of whom a linear layer is fitted, which weighs the members' answers;
            0: there is none, and the answers are averaged. Every update fits it again, from its start.

    Raises:
        ValueError: fewer than two shards, no slice, a share outside [0, 1], or what ``JoinOrder`` refuses.
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
    early_share: tuple[float, ...] = ()
    phase_shares: tuple[float, ...] = ()
    stacked: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "early_share", tuple(self.early_share))
        object.__setattr__(self, "phase_shares", tuple(self.phase_shares))
        if self.shards < 2 or self.slices < 1:
            raise ValueError(
                f"shards is {self.shards} and slices is {self.slices}: there must be at least 2 shards and 1 slice."
            )
        if not 0.0 <= self.stacked <= 1.0:
            raise ValueError(f"stacked is {self.stacked}: it is a share of the people, from 0 to 1.")
        if self.early_share or self.phase_shares:
            JoinOrder(self.early_share, self.phase_shares)

    @property
    def order(self) -> JoinOrder:
        """Return the phases of a shard's people."""
        if self.early_share:
            return JoinOrder(self.early_share, self.phase_shares)
        parts = range(1, self.slices + 1)
        return JoinOrder(tuple(part / self.slices for part in parts[:-1]), tuple(part / sum(parts) for part in parts))

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with an ensemble of ``shards`` of its models in place of one.

        Raises:
            Refused: a head is asked for, and the recipe's loss is not ``cross_entropy``.
        """
        if isinstance(recipe.model, Artefact):
            return self._of_bytes(recipe, recipe.model)
        if self.stacked > 0.0 and recipe.loss != "cross_entropy":
            raise Refused(
                f"A head weighs the answers of a classifier, and the recipe's loss is {recipe.loss!r}.",
                "Leave stacked out, or use cross_entropy.",
            )
        ensemble = EnsembleOf(recipe, self.shards, stacked=self.stacked > 0.0)
        if recipe.train is not None:
            return replace(recipe, model=ensemble)
        # The names are those of a member's parameters, and the members are trained by the recipe given.
        return replace(recipe, model=ensemble, training=replace(recipe.training, undecayed=()))

    def under(self, guarantee: Guarantee, recipe: Recipe) -> Method:
        """Return the method with one slice where the model is bytes: no training continues from them."""
        return replace(self, slices=1) if isinstance(recipe.model, Artefact) else self

    def _of_bytes(self, recipe: Recipe, model: Artefact) -> Recipe:
        if model.merge is None:
            raise Refused("shards publishes several members as one file, and the Artefact has no merge.", "Give merge.")
        if self.early_share or self.stacked > 0.0:
            what = "The model is bytes: no phase continues from them, and no head weighs them."
            raise Refused(what, "Leave early_share, phase_shares and stacked out.")
        return recipe

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Train every shard. Raises Refused where the training ends in a minimiser."""
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
        kept, start = retained(forget, retain), self.left(state, forget.positions)
        return Forgotten(self._trained(problem, kept, start, silent), self.told(start))

    def afresh(self, state: State) -> State:
        bare = {name: value for name, value in state.tensors.items() if name != "answers"}
        return reduce(without_checkpoints, map(_of, range(self.shards)), replace(state, tensors=bare))

    def start(self) -> State:
        """Return what a training of all shards starts from: no checkpoint."""
        return State(torch.empty(0), {}, {_of(shard): [] for shard in range(self.shards)})

    def left(self, state: State, gone: Sequence[int]) -> State:
        """Return what is still usable without the samples ``gone``: checkpoints that have not seen them.

        The head needs the answers of members that do not change.
        """
        positions, shards, joined, drawn = state.tensors["joined"]
        leaves = torch.isin(positions, torch.tensor(gone, device=positions.device))
        first: dict[int, int] = {}
        for shard, phase in zip(shards[leaves].tolist(), joined[leaves].tolist(), strict=True):
            first[shard] = min(phase, first.get(shard, phase))
        start = State(torch.empty(0))
        for shard in range(self.shards):
            usable = checkpoints_of(state, _of(shard))[: first.get(shard, len(self.order))]
            start = with_checkpoints(start, usable, _of(shard))
        known = {
            f"answers {shard}": answers[~leaves[drawn == 1]]
            for shard, answers in enumerate(state.tensors.get("answers", ()))
            if shard not in first
        }
        return replace(start, tensors={**start.tensors, **known})

    def unfinished(self, start: State) -> list[int]:
        """Return the shards that lack a phase in ``start``. Each can be trained apart from the others."""
        return [shard for shard in range(self.shards) if len(checkpoints_of(start, _of(shard))) < len(self.order)]

    def told(self, start: State) -> dict[str, Json]:
        """Return the evidence of an update from ``start``: how many phases it repeats."""
        return {"phases": sum(len(self.order) - len(checkpoints_of(start, _of(each))) for each in range(self.shards))}

    def part(
        self, problem: Problem, examples: Examples, start: State, number: int, progress: Progress = silent
    ) -> State:
        """Train one shard from its checkpoints in ``start``; ``examples`` are everyone's. The weights are empty."""
        shard_of, _ = self._drawn(problem, examples)
        return self._part(problem, examples.only(examples.positions[shard_of == number]), start, number, progress)

    def chains(self, problem: Problem, examples: Examples, start: State) -> dict[int, list[tuple[Phase, Examples]]]:
        """Return what ``part`` trains of each unfinished shard: its phases in order, each with its samples."""
        members = self._members(problem, examples, start)
        return {shard: self._plan(problem, here, start, shard) for shard, here in members.items()}

    def repeats(self, problem: Problem, subjects: Collection[tuple[str, ...]]) -> float:
        """Return the share of the steps in the phases, of all shards, that saw one of these samples."""
        first: dict[int, int] = {}
        for people in subjects:
            shard = self._shard_of(problem, people)
            first[shard] = min(self.order.phase_of(problem, people), first.get(shard, len(self.order)))
        return math.fsum(steps for phase in first.values() for steps in self.order.phase_shares[phase:]) / self.shards

    def expected_repeats(self, requests: int) -> float:
        return self.order.expected_repeats(requests, self.shards)

    def whole(
        self,
        problem: Problem,
        examples: Examples,
        start: State,
        parts: Mapping[int, State],
        progress: Progress = silent,
    ) -> State:
        """Return the state of all shards: those of ``parts``, and the others as ``start`` has them."""
        member = member_of(problem)
        shard_of, drawn = self._drawn(problem, examples)
        joined = torch.stack([examples.positions, shard_of, self.order.joined(problem, examples), drawn])
        fitting = examples.only(examples.positions[drawn == 1])
        answers: list[Tensor] = []
        ends: list[Tensor] = []
        state = State(torch.empty(0), {"joined": joined})
        for shard in range(self.shards):
            fitted = checkpoints_of(parts.get(shard, start), _of(shard))
            state = with_checkpoints(state, fitted, _of(shard))
            ends.append(fitted[-1].weights)
            if self.stacked > 0.0:
                known = start.tensors.get(f"answers {shard}")
                answers.append(answers_of(member, fitted[-1].weights, fitting) if known is None else known)
        progress(1.0)
        if problem.artefact is not None:
            return replace(state, weights=merged(problem, ends, examples))
        weights = {
            f"members.{shard}.{name}": value
            for shard, end in enumerate(ends)
            for name, value in member.tensors(end).items()
        }
        if self.stacked > 0.0:
            weights |= fit_head(torch.stack(answers), problem.apart(fitting.targets)[0])
            state = replace(state, tensors={**state.tensors, "answers": torch.stack(answers)})
        return replace(state, weights=problem.flatten(weights))

    def _trained(self, problem: Problem, examples: Examples, start: State, progress: Progress) -> State:
        """Train what ``start`` lacks. A shard without people keeps its start."""
        members = self._members(problem, examples, start)
        if problem.fresh is not None:
            problem.fresh.announce([self._plan(problem, here, start, shard) for shard, here in members.items()])
        parts: dict[int, State] = {}
        for place, (shard, here) in enumerate(members.items()):
            share = within(progress, place / len(members), 1.0 / len(members))
            parts[shard] = self._part(problem, here, start, shard, share)
        return self.whole(problem, examples, start, parts, progress)

    def _members(self, problem: Problem, examples: Examples, start: State) -> dict[int, Examples]:
        """Return the samples of each shard that lacks a phase in ``start``."""
        shard_of, _ = self._drawn(problem, examples)
        return {shard: examples.only(examples.positions[shard_of == shard]) for shard in self.unfinished(start)}

    def _plan(self, problem: Problem, here: Examples, start: State, number: int) -> list[tuple[Phase, Examples]]:
        """Return the phases that a shard of the samples ``here`` lacks in ``start``."""
        return self.order.plan(problem, here, _slices(number), len(checkpoints_of(start, _of(number))))

    def _part(self, problem: Problem, here: Examples, start: State, number: int, progress: Progress) -> State:
        """Train one shard on its own samples."""
        usable = checkpoints_of(start, _of(number))
        fitted = self.order.train(member_of(problem), here, _slices(number), usable, progress)
        return with_checkpoints(State(torch.empty(0)), fitted, _of(number))

    def _drawn(self, problem: Problem, examples: Examples) -> tuple[Tensor, Tensor]:
        """Return each sample's shard, and 1 where the head is fitted on it, else 0: two tensors (n,) int64.

        Both follow from the seed and the set of the sample's people alone.
        """
        groups = set(examples.subjects)
        shard_of = {people: self._shard_of(problem, people) for people in groups}
        fitted = {people: int(seed_of(problem, "head", *people) < self.stacked * 2**63) for people in groups}
        drawn = torch.tensor([(shard_of[people], fitted[people]) for people in examples.subjects])
        shards, heads = drawn.to(examples.positions.device).unbind(dim=1)
        return shards, heads

    def _shard_of(self, problem: Problem, people: tuple[str, ...]) -> int:
        return seed_of(problem, "shard", *people) % self.shards


def _of(shard: int) -> str:
    """Return the name of a shard's checkpoints in a state."""
    return f"shard {shard}"


def _slices(shard: int) -> str:
    """Return what the phases of a shard are called, before their number."""
    return f"shard {shard} slice"


def member_of(problem: Problem) -> Problem:
    """Return the problem of one model of the ensemble."""
    ensemble = problem.recipe.model
    if problem.artefact is not None:
        return problem
    if not isinstance(ensemble, EnsembleOf):
        raise TypeError("shards works on the recipe that Shards.recipe returns.")
    member = Problem(ensemble.member, problem.device, problem.dtype)
    member.fresh = problem.fresh
    return member


METHOD = Shards
