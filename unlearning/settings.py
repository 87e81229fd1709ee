"""The settings of the built-in training: step sizes, optimiser, schedule, augmentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from unlearning.types import RecipeError

Shape: TypeAlias = Literal["constant", "step", "cosine", "exponential"]

Draw: TypeAlias = Callable[[int], Tensor]
"""k -> (n, k) numbers in [0, 1): each sample's row follows from the seed, its person, the sample and the pass alone"""

Augment: TypeAlias = Callable[[Tensor, Draw], Tensor]
"""(inputs (n, ...), draw) -> inputs (n, ...); it treats every sample by itself, and draws no other random numbers"""

COUNTS_WHERE_SET: Mapping[str, bool] = {"counts_where_set": True}
"""of a setting that came later: left alone, it leaves a recipe what it was (runtime/recipes of the workers)"""


def _positive(value: float) -> bool:
    return 0.0 < value < math.inf


def _require(holds: bool, name: str, value: object, must: str) -> None:
    if not holds:
        raise RecipeError(f"{name} is {value!r}.", f"It must be {must}.")


@dataclass(frozen=True)
class SGD:
    """Gradient descent, by ``torch.optim.SGD`` where it has momentum. Weight decay is a part of the gradient.

    Args:
        momentum: in [0, 1); 0: plain steps, which every method can follow.
        nesterov: Nesterov's momentum.

    Raises:
        RecipeError: a momentum outside its range, or nesterov without momentum.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _require(0.0 <= self.momentum < 1.0, "momentum", self.momentum, "in [0, 1)")
        _require(self.momentum > 0.0 or not self.nesterov, "nesterov", self.nesterov, "False without momentum")


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), by ``torch.optim.AdamW``.

    Args:
        betas: how much of the running means of the gradient and of its square each step keeps; each in [0, 1).
        eps: added to the root in the denominator.

    Raises:
        RecipeError: a value outside its range.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        proper = len(self.betas) == 2 and all(0.0 <= beta < 1.0 for beta in self.betas)
        _require(proper, "betas", self.betas, "two numbers in [0, 1)")
        _require(_positive(self.eps), "eps", self.eps, "positive and finite")


@dataclass(frozen=True)
class Schedule:
    """What the step size is multiplied by, over the T steps of a training (or of one phase of it).

    With u in [0, 1) the share of the steps after the warm-up that are done: ``constant`` is 1; ``step`` is
    ``factor`` once for each of ``milestones`` that u has reached; ``cosine`` falls from 1 to ``factor`` as
    factor + (1 - factor) (1 + cos(pi u)) / 2; ``exponential`` is factor^u.

    Args:
        shape: one of the four.
        warmup: steps (a whole number), or a share of all steps (a number below 1), over which the step size first
            rises in equal parts from 0.
        factor: see above; by default .1 for ``step``, 0 for ``cosine``, .01 for ``exponential``.
        milestones: of ``step``: shares of the steps, rising, each in (0, 1).

    Raises:
        RecipeError: a value outside its range.
    """

    shape: Shape = "constant"
    warmup: float = 0
    factor: float | None = None
    milestones: tuple[float, ...] = (0.5, 0.75)

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        _require(self.shape in get_args(Shape), "schedule.shape", self.shape, f"one of {', '.join(get_args(Shape))}")
        whole = self.warmup == int(self.warmup) if math.isfinite(self.warmup) else False
        warm = 0.0 <= self.warmup < 1.0 or (whole and self.warmup > 0)
        _require(warm, "schedule.warmup", self.warmup, "a number of steps, or a share below 1")
        if self.factor is None:
            object.__setattr__(self, "factor", {"step": 0.1, "exponential": 0.01}.get(self.shape, 0.0))
        least = self.factor is not None and 0.0 <= self.factor <= 1.0 and (self.factor > 0 or self.shape == "cosine")
        _require(least or self.shape == "constant", "schedule.factor", self.factor, "in (0, 1], or 0 for cosine")
        rising = sorted(set(self.milestones)) == list(self.milestones)
        inside = all(0.0 < share < 1.0 for share in self.milestones)
        _require(rising and inside, "schedule.milestones", self.milestones, "rising shares in (0, 1)")

    def warming(self, step: int, steps: int) -> float:
        """Return what the warm-up multiplies the step size of ``step``, of ``steps``, by: (step + 1) / warm-up."""
        length = self._warmup(steps)
        return (step + 1) / length if step < length else 1.0

    def at(self, step: int, steps: int) -> float:
        """Return what the step size of ``step`` (from 0), of ``steps``, is multiplied by, warm-up included."""
        length = self._warmup(steps)
        if step < length:
            return self.warming(step, steps)
        done, factor = (step - length) / (steps - length), float(self.factor or 0.0)
        match self.shape:
            case "step":
                return math.pow(factor, sum(done >= share for share in self.milestones))
            case "cosine":
                return factor + (1.0 - factor) * 0.5 * (1.0 + math.cos(math.pi * done))
            case "exponential":
                return math.pow(factor, done)
        return 1.0

    def _warmup(self, steps: int) -> int:
        return min(steps, int(self.warmup) if self.warmup >= 1 else round(self.warmup * steps))


@dataclass(frozen=True)
class Training:
    """How the model is trained: by (mini-batch) gradient descent, ``w <- w - eta_t s_t (grad + lambda w)``, or AdamW.

    Dropout and batch normalisation of the model act as ``model()`` leaves them: a part in training mode acts during
    the training, a part after ``.eval()`` does not. Every random number is keyed by the seed, the person, the sample
    and the pass, so that a training without a person draws the same for all others.

    Args:
        epochs: passes over the data; 0 only together with ``converge``.
        batch_size: samples that go through the model at once; None: all of them.
        learning_rate: eta_0.
        decay: q in eta_t = eta_0 q^t, per step; ``schedule`` multiplies it.
        clip: C in s_t = min(1, C / ||grad + lambda w||); None: not clipped. With AdamW without lambda w.
        weight_decay: lambda; the penalty is (lambda/2) ||w||^2. AdamW shrinks w by the factor 1 - eta_t lambda instead.
        seed: of the initialisation, of the batch order and of every other random number.
        converge: for convex losses only: after the epochs, Newton's method in float64 until the norm of the
            full gradient is at most this.
        sample_clip: G: every sample's data gradient is scaled to a norm of at most G (weight decay stays outside).
        undecayed: names of parameters that weight decay leaves out.
        optimizer: ``SGD`` or ``AdamW``.
        schedule: of the step size.
        accumulate: how many batches one step averages over.
        augment: changes the inputs of each batch: (inputs (n, ...), draw) -> inputs (n, ...).
        mixed_precision: run the model in bfloat16 on a GPU (autocast); weights and steps stay as they are.
        radius: C: after every step the trained weights are scaled back to ||w|| <= C (projected descent).

    Raises:
        RecipeError: a value outside its range, or two that do not go together.
    """

    epochs: int
    batch_size: int | None = None
    learning_rate: float = 0.1
    decay: float = 1.0
    clip: float | None = None
    weight_decay: float = 0.0
    seed: int = 0
    converge: float | None = None
    sample_clip: float | None = None
    undecayed: tuple[str, ...] = ()
    optimizer: SGD | AdamW = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Schedule)
    accumulate: int = 1
    augment: Augment | None = None
    mixed_precision: bool = False
    radius: float | None = field(default=None, metadata=COUNTS_WHERE_SET)

    def __post_init__(self) -> None:
        object.__setattr__(self, "undecayed", tuple(self.undecayed))
        least_epochs = 0 if self.converge is not None else 1
        _require(self.epochs >= least_epochs, "epochs", self.epochs, f"at least {least_epochs}")
        _require(self.batch_size is None or self.batch_size >= 1, "batch_size", self.batch_size, "at least 1, or None")
        _require(_positive(self.learning_rate), "learning_rate", self.learning_rate, "positive and finite")
        _require(0.0 < self.decay <= 1.0, "decay", self.decay, "in (0, 1]")
        _require(0.0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "0 or more")
        for name in ("clip", "converge", "sample_clip", "radius"):
            value = getattr(self, name)
            _require(value is None or _positive(value), name, value, "positive and finite, or None")
        _require(isinstance(self.optimizer, SGD | AdamW), "optimizer", self.optimizer, "ul.SGD(...) or ul.AdamW(...)")
        _require(isinstance(self.schedule, Schedule), "schedule", self.schedule, "ul.Schedule(...)")
        _require(self.augment is None or callable(self.augment), "augment", self.augment, "a function, or None")
        self._require_accumulation()
        self._require_together()

    @property
    def step_size(self) -> int | None:
        """Return the samples that one step averages over; None: all of them."""
        return None if self.batch_size is None else self.batch_size * self.accumulate

    def rate(self, step: int, steps: int) -> float:
        """Return eta_t of ``step`` (from 0), of ``steps``."""
        return self.learning_rate * self.decay**step * self.schedule.at(step, steps)

    def _require_accumulation(self) -> None:
        least = isinstance(self.accumulate, int) and self.accumulate >= 1
        _require(least, "accumulate", self.accumulate, "a whole number of batches, at least 1")
        batched = self.accumulate == 1 or self.batch_size is not None
        _require(batched, "accumulate", self.accumulate, "1 without batch_size: every sample is in each step already")

    def _require_together(self) -> None:
        beyond = {
            "optimizer": self.optimizer != SGD(),
            "augment": self.augment is not None,
            "mixed_precision": self.mixed_precision,
            "radius": self.radius is not None,
        }
        named = ", ".join(name for name, used in beyond.items() if used)
        if named and self.converge is not None:
            raise RecipeError(
                f"converge ends in the minimiser of the plain loss, after any training; {named} is given too.",
                "Leave one of them out.",
            )
        if named and self.sample_clip is not None:
            raise RecipeError(
                f"sample_clip works with plain gradient descent alone; {named} is given too.",
                "Leave one of them out, or use clip.",
            )
