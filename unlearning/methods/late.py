"""Order the people: forgetting one that joined last repeats the last part of the training.

A core of the people, drawn by a hash, trains alone in the first phase; others join in later phases, and all are in
the last (``phases.JoinOrder``). Each phase starts from the checkpoint of the one before. To forget a person,
the phases from the first that saw one of their samples are repeated without them; the checkpoints before it have never
seen them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from unlearning.artefact import Artefact
from unlearning.model.descent.fitted import Fitted
from unlearning.model.method import Method
from unlearning.model.phases import REUSED, JoinOrder, checkpoints_of, with_checkpoints, without_checkpoints
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Ineffective,
    Learned,
    Need,
    Progress,
    Refused,
    State,
    retained,
    silent,
)

CHOOSE = "Choose shards or retrain; a recipe with rows goes on where it takes run=ul.run() and reads run.start."


@dataclass(frozen=True)
class Late(Method):
    """Train in phases that people join one after another; forget by repeating the phases that saw the person.

    Args:
        early_share: the share of the people in each phase but the last, increasing, each in (0, 1).
        phase_shares: what share of the work each phase is, one for each phase, with sum 1.

    Raises:
        ValueError: no early share, shares outside (0, 1), not increasing, or of the wrong number or sum.
    """

    name: ClassVar[str] = "late"
    exact: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    assumptions: ClassVar[tuple[str, ...]] = REUSED
    secret_state: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})
    early_share: tuple[float, ...] = (0.5,)
    phase_shares: tuple[float, ...] = (0.9, 0.1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "early_share", tuple(self.early_share))
        object.__setattr__(self, "phase_shares", tuple(self.phase_shares))
        if not self.early_share:
            raise ValueError("early_share is empty: name the share of the people in each phase but the last.")
        JoinOrder(self.early_share, self.phase_shares)

    @property
    def order(self) -> JoinOrder:
        """Return each person's phase."""
        return JoinOrder(self.early_share, self.phase_shares)

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return ``recipe``. Raises Refused where the model is bytes that no training goes on from."""
        if isinstance(recipe.model, Artefact) and not recipe.model.continues:
            raise Refused("late continues a training, and this recipe's does not go on from what it left.", CHOOSE)
        return recipe

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Train all phases. Raises Refused as ``JoinOrder.train``, and Ineffective where phase 1 is empty."""
        return self._trained(problem, examples, (), progress)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Repeat the phases from the first that saw a forgotten sample. An empty set returns ``state`` itself."""
        if not forget:
            return Forgotten(state)
        kept = retained(forget, retain)
        positions, joined = state.tensors["joined"]
        gone = torch.isin(positions, torch.tensor(forget.positions, device=positions.device))
        first = min(joined[gone].tolist(), default=len(self.order))
        unseen = checkpoints_of(state, "phase")[:first]
        return Forgotten(self._trained(problem, kept, unseen, silent), {"first_phase": len(unseen)})

    def afresh(self, state: State) -> State:
        return without_checkpoints(state, "phase")

    def repeats(self, problem: Problem, subjects: Collection[tuple[str, ...]]) -> float:
        """Return the share of the work in the phases that saw one of these samples."""
        first = min((self.order.phase_of(problem, people) for people in subjects), default=len(self.order))
        return math.fsum(self.phase_shares[first:])

    def expected_repeats(self, requests: int) -> float:
        return self.order.expected_repeats(requests)

    def _trained(
        self, problem: Problem, examples: Examples, checkpoints: Sequence[Fitted], progress: Progress
    ) -> State:
        """Train the phases that come after ``checkpoints``, on those of ``examples`` that have joined by then."""
        joined = self.order.joined(problem, examples)
        if not bool((joined == 0).any()):
            raise Ineffective("Nobody is in phase 1 of the training.", "Raise early_share, or use retrain.")
        fitted = self.order.train(problem, examples, "phase", checkpoints, progress)
        progress(1.0)
        state = State(fitted[-1].weights, {"joined": torch.stack([examples.positions, joined])})
        return with_checkpoints(state, fitted[:-1], "phase")


METHOD = Late
