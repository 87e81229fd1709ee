"""Order the people: those who joined last can be forgotten by repeating the last part of the training.

Everyone draws, once and for all, a number in [0, 1) from a hash of the seed and the person's name. Those below the
first threshold train alone in the first phase, those below the second join in the second, and so on; everyone is in
the last. Each phase starts from the checkpoint of the one before. To forget somebody, the phases from the one that
person joined in are repeated without them; the checkpoints before it have never seen them.

The draw depends on the seed and the name alone. A quota filled up to a given number, or a rank, would depend on who
else is there, and a checkpoint would then no longer be that of a training without the deleted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch

from unlearning.model.fit import PHASES, REUSED, Phase, checkpoints_of, fit, with_checkpoints
from unlearning.model.method import Method
from unlearning.model.own_training import Fitted, seed_of
from unlearning.model.problem import Problem
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Learned,
    Need,
    Progress,
    Refused,
    State,
    retained,
    silent,
)


@dataclass(frozen=True)
class Late(Method):
    """Train in phases that people join one after another; forget by repeating the phases that saw the person.

    Args:
        core: the share of the people who are in each phase but the last, increasing, each in (0, 1).
        passes: the share of the training's steps that each phase makes; one more than ``core``, with sum 1.

    A phase over a share p of the people makes passes / p of the usual number of passes over them: the number of its
    steps follows from the settings, never from who is there.

    Raises:
        ValueError: shares outside (0, 1), not increasing, or of the wrong number or sum.
    """

    name: ClassVar[str] = "late"
    exact: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    assumptions: ClassVar[tuple[str, ...]] = REUSED
    checked: ClassVar[tuple[str, ...]] = PHASES
    secret_state: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})
    core: tuple[float, ...] = (0.5,)
    passes: tuple[float, ...] = (0.9, 0.1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", tuple(self.core))
        object.__setattr__(self, "passes", tuple(self.passes))
        rising = all(low < high for low, high in pairwise((0.0, *self.core, 1.0)))
        if not self.core or not rising or len(self.passes) != len(self.core) + 1:
            raise ValueError(
                f"core is {self.core} and passes is {self.passes}: core needs increasing shares in (0, 1), and passes "
                "one more entry than core."
            )
        if min(self.passes) <= 0.0 or abs(sum(self.passes) - 1.0) > 1e-9:
            raise ValueError(f"passes is {self.passes}: its entries must be positive and sum up to 1.")

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Train all phases. Raises Refused where the training ends in a minimiser, or nobody is in the first phase."""
        return self._trained(problem, examples, (), progress)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Repeat the phases from the first that saw a forgotten person. An empty set returns ``state`` itself."""
        if not forget:
            return Forgotten(state)
        kept = retained(forget, retain)
        first = min(self._joins(problem, person) for person in forget.people)
        return Forgotten(
            self._trained(problem, kept, checkpoints_of(state, "phase")[:first], silent), {"first_phase": first}
        )

    def repeats(self, problem: Problem, people: Collection[str]) -> float:
        """Return the share of the steps in the phases that ``people`` are in."""
        first = min((self._joins(problem, person) for person in people), default=len(self.passes))
        return math.fsum(self.passes[first:])

    def expected_repeats(self, requests: int) -> float:
        """Return the sum over phases of passes_j (1 - (1 - c_j)^requests), where c_j is the share who are in phase j.

        A phase is repeated where it saw at least one of them. Everyone is in the last.
        """
        shares = zip(self.passes, (*self.core, 1.0), strict=True)
        return math.fsum(steps * (1.0 - (1.0 - joined) ** requests) for steps, joined in shares)

    def _trained(
        self, problem: Problem, examples: Examples, checkpoints: Sequence[Fitted], progress: Progress
    ) -> State:
        """Train the phases that come after ``checkpoints``, on those of ``examples`` who have joined by then."""
        joined = torch.tensor([self._joins(problem, person) for person in examples.people])
        fitted = list(checkpoints)
        for place in range(len(fitted), len(self.passes)):
            here = examples.only(examples.positions[joined.to(examples.positions.device) <= place])
            if len(here) == 0:
                raise Refused(
                    f"Nobody is in phase {place + 1} of the training.", "Raise core, or use retrain for so few people."
                )
            share = self.passes[place] / (*self.core, 1.0)[place]
            last = place == len(self.passes) - 1
            phase = Phase(f"phase {place + 1}", share, "cosine" if last else "constant")
            done = sum(self.passes[:place])
            fitted.append(
                fit(problem, here, phase, fitted[-1] if fitted else None, _part(progress, done, self.passes[place]))
            )
        progress(1.0)
        return with_checkpoints(State(fitted[-1].weights), fitted[:-1], "phase")

    def _joins(self, problem: Problem, person: str) -> int:
        """Return the index of the phase that the person joins in."""
        drawn = seed_of(problem, "core", person) / 2**63
        return sum(drawn >= threshold for threshold in self.core)


def _part(progress: Progress, done: float, share: float) -> Progress:
    return lambda here: progress(min(1.0, done + share * here))


METHOD = Late
