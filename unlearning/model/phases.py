"""Train in phases that people join one after another: which there are, who is in each, what each leaves.

A phase sees its own samples and what the phase before it left; so a checkpoint can be used again as long as no person
of its phases was deleted. ``Problem.fresh`` trains them, each in a separate process.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

from torch import Tensor

from unlearning.model.descent.fitted import Fitted
from unlearning.model.problem import Fresh, Problem
from unlearning.types import Examples, Progress, Refused, State, silent

REUSED = (
    "The version is as if trained with these settings and the same reused secret numbers, without the deleted people. "
    "If requests were chosen after looking at earlier versions, they and the reused numbers may carry traces of those "
    "people; a cold retraining with fresh numbers reuses nothing. No claim is made against anyone who kept an earlier "
    "version.",
)
"""what an exact claim says where checkpoints are used again"""


@dataclass(frozen=True)
class Phase:
    """A part of a training; the name tells it from others of the same training."""

    name: str


def fresh_of(problem: Problem) -> Fresh:
    """Return what trains the parts of this problem. Raises Refused where nothing does, as in the laboratory."""
    if problem.fresh is None:
        raise Refused(
            "late and shards train parts of a recipe's rows, and here a model is trained on samples, in one piece.",
            "`expunge check PATH --measure` measures both as the service trains them.",
        )
    return problem.fresh


def seed_of(problem: Problem, *words: str) -> int:
    """Return a seed below 2^63 that follows from the training's seed and ``words``."""
    text = "\n".join((str(problem.training.seed), *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class JoinOrder:
    """The phase of each person of a training.

    Every person draws, once and for all, a number in [0, 1) from a hash of the seed and the person's name. Those below
    ``early_share[0]`` are in every phase, those below ``early_share[1]`` in all but the first, and so on; all are
    in the last. A sample of several people joins in the latest phase of theirs.

    Args:
        early_share: the share of the people in each phase but the last, increasing, each in (0, 1).
        phase_shares: what share of the work each phase is, one for each phase, with sum 1: by it progress and the cost
            of an update are told. What a phase computes is the recipe's affair.

    Raises:
        ValueError: shares outside (0, 1), not increasing, or of the wrong number or sum.
    """

    early_share: tuple[float, ...]
    phase_shares: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise((0.0, *self.early_share, 1.0)))
        if not rising or len(self.phase_shares) != len(self.early_share) + 1:
            raise ValueError(
                f"early_share is {self.early_share} and phase_shares is {self.phase_shares}: early_share needs "
                "increasing shares in (0, 1), and phase_shares one more entry than early_share."
            )
        if min(self.phase_shares) <= 0.0 or abs(sum(self.phase_shares) - 1.0) > 1e-9:
            raise ValueError(f"phase_shares is {self.phase_shares}: its entries must be positive and sum up to 1.")

    def __len__(self) -> int:
        """Return the number of phases."""
        return len(self.phase_shares)

    def joined(self, problem: Problem, examples: Examples) -> Tensor:
        """Return the index of the phase that each sample joins in, (n,) int64 on the work device.

        It follows from the seed and the sample's own people alone. A quota filled up to a given number, or a rank,
        would depend on other people: a checkpoint would then not be that of a training without the deleted.
        """
        joined = examples.subjects.each(lambda people: self.phase_of(problem, people))
        return joined.to(examples.positions.device)

    def phase_of(self, problem: Problem, people: Iterable[str]) -> int:
        """Return the index of the phase in which a sample of these people joins."""
        return max(self._joins(problem, person) for person in people)

    def expected_repeats(self, requests: int) -> float:
        """Return the expected share of the work that forgetting so many random people repeats.

        It is the sum over phases of w_j (1 - (1 - c_j)^requests). w_j is the share of the work, and c_j that of the
        people who are in phase j: a phase is repeated where it saw at least one of them.
        """
        shares = zip(self.phase_shares, (*self.early_share, 1.0), strict=True)
        return math.fsum(work * (1.0 - (1.0 - joined) ** requests) for work, joined in shares)

    def train(
        self,
        problem: Problem,
        examples: Examples,
        name: str,
        checkpoints: Sequence[Fitted] = (),
        progress: Progress = silent,
    ) -> list[Fitted]:
        """Train the phases that come after ``checkpoints``; return what each phase left, ``checkpoints`` included.

        A phase without members is skipped. Raises Refused as ``fresh_of``.
        """
        train, fitted = fresh_of(problem), list(checkpoints)
        plan = self.plan(problem, examples, name, len(fitted))
        train.announce([plan])
        for phase, here in plan:
            done, part = sum(self.phase_shares[: len(fitted)]), self.phase_shares[len(fitted)]
            before = fitted[-1] if fitted else None
            if len(here):
                fitted.append(train(phase, here, before, within(progress, done, part)))
            else:
                fitted.append(before or Fitted(problem.initial()))
        return fitted

    def plan(self, problem: Problem, examples: Examples, name: str, first: int = 0) -> list[tuple[Phase, Examples]]:
        """Return the phases from number ``first`` on, each with those of ``examples`` that are in it."""
        joined = self.joined(problem, examples)
        return [
            (Phase(f"{name} {place + 1}"), examples.only(examples.positions[joined <= place]))
            for place in range(first, len(self))
        ]

    def _joins(self, problem: Problem, person: str) -> int:
        drawn = seed_of(problem, "core", person) / 2**63
        return sum(drawn >= threshold for threshold in self.early_share)


def within(progress: Progress, done: float, share: float) -> Progress:
    """Return where a part reports its own progress, which is ``share`` of the whole after ``done`` of it."""
    return lambda here: progress(min(1.0, done + share * here))


def with_checkpoints(state: State, fitted: Sequence[Fitted], of: str) -> State:
    """Return ``state`` with checkpoints under the name ``of``; ``checkpoints_of`` reads them back."""
    tensors = {f"{of} {place}": checkpoint.weights for place, checkpoint in enumerate(fitted)}
    return replace(state, tensors={**state.tensors, **tensors}, facts={**state.facts, of: len(fitted)})


def without_checkpoints(state: State, of: str) -> State:
    """Return ``state`` without the checkpoints under the name ``of``."""
    tensors = {name: value for name, value in state.tensors.items() if not name.startswith(f"{of} ")}
    return replace(state, tensors=tensors, facts={**state.facts, of: 0})


def checkpoints_of(state: State, of: str) -> list[Fitted]:
    """Return the checkpoints that ``with_checkpoints`` kept under the name ``of``, in the order of the phases."""
    return [Fitted(state.tensors[f"{of} {place}"]) for place in range(cast("int", state.facts[of]))]
