"""Train on chosen samples for one phase: by the recipe's own function, or by the built-in training.

A method that keeps checkpoints calls ``fit`` once a phase. A phase sees its own samples, the recipe's settings, and
what the phase before it left; so a checkpoint can be used again as long as no person of its phases was deleted. An
``JoinOrder`` says which phases there are, and the people of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor

from unlearning.model.descent.loop import descend
from unlearning.model.descent.plan import Steps
from unlearning.model.problem import Problem
from unlearning.model.training import advance, drawn, steps_per_epoch
from unlearning.model.user_code.own_training import Fitted, seed_of, train_by_recipe
from unlearning.types import Examples, Json, Progress, RecipeError, Refused, State, silent

REUSED = (
    "The version is as if trained with these settings and the same reused secret numbers, without the deleted people. "
    "If requests were chosen after looking at earlier versions, they and the reused numbers may carry traces of those "
    "people; a cold retraining with fresh numbers reuses nothing. No claim is made against anyone who kept an earlier "
    "version.",
)
"""what an exact claim says where checkpoints are used again"""
PHASES = (
    "Each phase of the training was handed the samples of those who remain and no others. A checkpoint was used again "
    "only where no person of its phases was deleted; the first phase started from what model() gives.",
)
"""what the service makes sure of in that case"""


@dataclass(frozen=True)
class Phase:
    """A part of a training.

    Args:
        name: tells the phases of one training apart; it keys the phase's random draws.
        share: how many times the usual number of passes this phase makes over its samples.
        schedule: of the built-in step sizes. ``recipe``: as the recipe says, from its start; ``constant``: eta_0;
            ``cosine``: from eta_0 down to 0 over the phase. The recipe's warm-up opens the first phase in any case.
    """

    name: str
    share: float = 1.0
    schedule: Literal["recipe", "constant", "cosine"] = "recipe"

    def carried_out(self, problem: Problem, examples: Examples, start: Fitted | None, progress: Progress) -> Fitted:
        """Train this phase."""
        return fit(problem, examples, self, start, progress)


def fit(
    problem: Problem, examples: Examples, phase: Phase, start: Fitted | None = None, progress: Progress = silent
) -> Fitted:
    """Train for one phase on ``examples``, from ``start`` or else from the model's constructor.

    The result depends on the arguments alone.

    Raises:
        Refused: the built-in training ends in a minimiser, which phases cannot lead to.
        RecipeError: no sample is given, or the weights stop being finite.
    """
    if problem.fresh is not None:
        return problem.fresh(phase, examples, start, progress)
    if problem.recipe.train is not None:
        last = phase.schedule != "constant"
        return train_by_recipe(problem, examples, phase.name, phase.share, start=start, last=last, progress=progress)
    training = problem.training
    if training.converge is not None:
        raise Refused(
            "The training ends in a minimiser, which does not depend on who joined when.",
            "Use newton or recollection under proved, or leave converge out.",
        )
    if len(examples) == 0:
        raise RecipeError("No sample is left to train on.", "Retire the model instead.")
    passes = max(1, round(training.epochs * phase.share))
    batches = tuple(drawn(examples.positions.cpu(), training.step_size, passes, seed_of(problem, phase.name)))
    rates = tuple(_rate(problem, phase, step, len(batches), start is None) for step in range(len(batches)))
    if problem.ingredients:
        plan = Steps(batches, rates, steps_per_epoch(problem, len(examples)))
        return descend(problem, examples, plan, phase.name, start=start, progress=progress)
    w = problem.initial() if start is None else start.weights.to(device=problem.device, dtype=problem.dtype)
    for step, (positions, rate) in enumerate(zip(batches, rates, strict=True)):
        progress(step / len(batches))
        w, _ = advance(problem, examples, positions, w, rate)
    if not bool(torch.isfinite(w).all()):
        raise RecipeError(f"The weights are not finite after the phase {phase.name!r}.", "Lower the learning rate.")
    progress(1.0)
    return Fitted(w)


def _rate(problem: Problem, phase: Phase, step: int, steps: int, opens: bool) -> float:
    """Return eta_t of a step of the phase; ``opens``: it is the first phase of the training."""
    training = problem.training
    rate = training.learning_rate * (training.schedule.warming(step, steps) if opens else 1.0)
    match phase.schedule:
        case "recipe":
            return training.rate(step, steps)
        case "constant":
            return rate
        case "cosine":
            return rate * 0.5 * (1.0 + math.cos(math.pi * step / steps))


@dataclass(frozen=True)
class JoinOrder:
    """The phase of each person of a training.

    Every person draws, once and for all, a number in [0, 1) from a hash of the seed and the person's name. Those below
    ``early_share[0]`` are in every phase, those below ``early_share[1]`` in all but the first, and so on; all are
    in the last. A sample of several people joins in the latest phase of theirs.

    Args:
        early_share: the share of the people in each phase but the last, increasing, each in (0, 1).
        phase_shares: the share of the training's steps that each phase makes, one for each phase, with sum 1.

    A phase over a share p of the people makes its share / p of the usual number of passes over them: the number of its
    steps follows from the settings, never from the people.

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

    def expected_repeats(self, requests: int, parts: int = 1) -> float:
        """Return the expected share of the steps that forgetting so many random people repeats.

        It is the sum over phases of passes_j (1 - (1 - c_j / parts)^requests). c_j is the share of the people that are
        in phase j: a phase is repeated where it saw at least one of them. ``parts``: how many models there are, each
        with its own people and the same order.
        """
        shares = zip(self.phase_shares, (*self.early_share, 1.0), strict=True)
        return math.fsum(steps * (1.0 - (1.0 - joined / parts) ** requests) for steps, joined in shares)

    def train(
        self,
        problem: Problem,
        examples: Examples,
        name: str,
        checkpoints: Sequence[Fitted] = (),
        progress: Progress = silent,
    ) -> list[Fitted]:
        """Train the phases that come after ``checkpoints``; return what each phase left, ``checkpoints`` included.

        A phase without members is skipped.
        """
        fitted = list(checkpoints)
        for phase, here in self.plan(problem, examples, name, len(fitted)):
            done, part = sum(self.phase_shares[: len(fitted)]), self.phase_shares[len(fitted)]
            before = fitted[-1] if fitted else None
            if len(here):
                fitted.append(fit(problem, here, phase, before, within(progress, done, part)))
            else:
                fitted.append(before or Fitted(problem.initial()))
        return fitted

    def plan(self, problem: Problem, examples: Examples, name: str, first: int = 0) -> list[tuple[Phase, Examples]]:
        """Return the phases from number ``first`` on, each with those of ``examples`` that are in it."""
        joined, shares = self.joined(problem, examples), (*self.early_share, 1.0)
        phases = (
            Phase(f"{name} {place + 1}", self.phase_shares[place] / shares[place], self._schedule(place))
            for place in range(first, len(self))
        )
        return [
            (phase, examples.only(examples.positions[joined <= place])) for place, phase in enumerate(phases, first)
        ]

    def _joins(self, problem: Problem, person: str) -> int:
        drawn = seed_of(problem, "core", person) / 2**63
        return sum(drawn >= threshold for threshold in self.early_share)

    def _schedule(self, place: int) -> Literal["recipe", "constant", "cosine"]:
        if len(self) == 1:
            return "recipe"
        return "cosine" if place == len(self) - 1 else "constant"


def within(progress: Progress, done: float, share: float) -> Progress:
    """Return where a part reports its own progress, which is ``share`` of the whole after ``done`` of it."""
    return lambda here: progress(min(1.0, done + share * here))


def with_checkpoints(state: State, fitted: Sequence[Fitted], of: str) -> State:
    """Return ``state`` with checkpoints under the name ``of``; ``checkpoints_of`` reads them back."""
    tensors: dict[str, Tensor] = {}
    for place, each in enumerate(fitted):
        tensors[f"{of} {place}.weights"] = each.weights
        tensors |= {f"{of} {place}.rest.{name}": value for name, value in each.tensors.items()}
    rest: list[Json] = [each.facts for each in fitted]
    return replace(state, tensors={**state.tensors, **tensors}, facts={**state.facts, of: rest})


def without_checkpoints(state: State, of: str) -> State:
    """Return ``state`` without the checkpoints under the name ``of``."""
    kept = {name: value for name, value in state.tensors.items() if not name.startswith(f"{of} ")}
    return replace(state, tensors=kept, facts={**state.facts, of: []})


def checkpoints_of(state: State, of: str) -> list[Fitted]:
    """Return the checkpoints that ``with_checkpoints`` kept under the name ``of``, in the order of the phases."""
    found = []
    for place, facts in enumerate(cast("list[Json]", state.facts[of])):
        prefix = f"{of} {place}.rest."
        rest = {name.removeprefix(prefix): value for name, value in state.tensors.items() if name.startswith(prefix)}
        found.append(Fitted(state.tensors[f"{of} {place}.weights"], rest, facts))
    return found
