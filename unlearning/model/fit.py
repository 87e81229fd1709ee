"""Train on chosen samples for one phase: by the recipe's own function, or by the built-in training.

A method that keeps checkpoints calls ``fit`` once a phase. A phase sees its own samples, the recipe's settings, and
what the phase before it left; so a checkpoint can be used again as long as nobody of its phases was deleted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

from unlearning.model.descent.loop import descend
from unlearning.model.descent.plan import Steps
from unlearning.model.own_training import Fitted, seed_of, train_by_recipe
from unlearning.model.problem import Problem
from unlearning.model.training import advance, drawn, steps_per_epoch
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
    "only where nobody of its phases was deleted; the first phase started from what model() gives.",
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


def fit(
    problem: Problem, examples: Examples, phase: Phase, start: Fitted | None = None, progress: Progress = silent
) -> Fitted:
    """Train for one phase on ``examples``, from ``start`` or else from the model's constructor.

    The result depends on the arguments alone.

    Raises:
        Refused: the built-in training ends in a minimiser, which phases cannot lead to.
        RecipeError: no sample is given, or the weights stop being finite.
    """
    if problem.recipe.train is not None:
        return train_by_recipe(problem, examples, phase.name, phase.share, start=start, progress=progress)
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


def with_checkpoints(state: State, fitted: Sequence[Fitted], of: str) -> State:
    """Return ``state`` with checkpoints under the name ``of``; ``checkpoints_of`` reads them back."""
    tensors: dict[str, Tensor] = {}
    for place, each in enumerate(fitted):
        tensors[f"{of} {place}.weights"] = each.weights
        tensors |= {f"{of} {place}.rest.{name}": value for name, value in each.tensors.items()}
    rest: list[Json] = [each.facts for each in fitted]
    return replace(state, tensors={**state.tensors, **tensors}, facts={**state.facts, of: rest})


def checkpoints_of(state: State, of: str) -> list[Fitted]:
    """Return the checkpoints that ``with_checkpoints`` kept under the name ``of``, in the order of the phases."""
    found = []
    for place, facts in enumerate(cast("list[Json]", state.facts[of])):
        prefix = f"{of} {place}.rest."
        rest = {name.removeprefix(prefix): value for name, value in state.tensors.items() if name.startswith(prefix)}
        found.append(Fitted(state.tensors[f"{of} {place}.weights"], rest, facts))
    return found
