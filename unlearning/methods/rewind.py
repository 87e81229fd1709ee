"""Rewind (R2D): go back K of the T training steps and take them again without the forgotten.

Source: Mu and Klabjan, "Rewind-to-Delete: Certified Machine Unlearning for Nonconvex Functions"
(arXiv 2409.09778), algorithms 1 to 3 and theorem 3.1.

    w_{t+1} = w_t - eta_t s_t g_B(w_t),   t = T-K .. T-1,   B = batch of step t without the forgotten

from the checkpoint w_{T-K} of the first training, with the step sizes eta_t and the batch order of exactly those
steps. K = T is retraining, bit for bit. Every update starts from the same checkpoint, so m in the bounds is the
running total of the forgotten. **The checkpoint was trained on all people**: it is secret state that depends on the
forgotten, until a cold retrain replaces it.

A training of more than plain gradient steps (momentum, AdamW, dropout, batch normalisation, augmentation) leaves no
trajectory. Preparation takes its first T-K steps once more, which costs 1 - K/T of a training, and the checkpoint then
holds the buffers and the optimiser's state too. No bound is known there.

Without a recorded trajectory (a model trained elsewhere by full-batch gradient descent) the checkpoint is computed
backwards by the proximal-point method, algorithm 3: w_t = argmin_v -F(v) + ||v - w_{t+1}||^2 / (2 eta_t), whose
stationary point is the inverse of one step, w_t = w_{t+1} + eta_t g(w_t).

How far the result can be from retraining is in ``unlearning.bounds.rewind``.

Deviations from the paper, each with its reason:

* Mini-batches are served (the same batches without the forgotten), but theorem 3.1 is about full batches: such a
  update is ``estimated`` at most.
* The bound is a tighter one than theorem 3.1, and noise follows the exact Gaussian curve (``bounds.rewind``).
* Training may clip: a step by its batch, or each sample's gradient. The repeated steps clip in the same way.
* The inverse steps of algorithm 3 are taken in float64 and then taken forward again: they are ill-conditioned, and
  a rewind that does not come back to the given weights is refused. That cannot tell whether the weights were trained
  by this recipe: every vector has a rewind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from unlearning.accounting.certificate import Guarantee
from unlearning.bounds.gradients import require_within
from unlearning.bounds.rewind import RewoundEstimate, RewoundProof
from unlearning.bounds.rewind_length import Length, Past, Wanted
from unlearning.model.descent.fitted import Fitted
from unlearning.model.descent.ingredients import Ingredient, require_plain
from unlearning.model.descent.loop import descend
from unlearning.model.descent.plan import REFERENCES, Steps
from unlearning.model.method import INTERNAL, OF_POLICY, Bound, Method, require_followed
from unlearning.model.problem import Problem
from unlearning.model.training import advance, planned_by, replay, steps_per_epoch, train
from unlearning.recipe import Recipe
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Json,
    Learned,
    Need,
    Progress,
    RecipeError,
    Refused,
    State,
    retained,
    silent,
)

ITERATIONS = 500
"""of the fixed point that undoes one step"""
PRECISION = 1e-12
"""of the step that is undone, over the weights' norm"""
TOLERANCE = 1e-3
"""of the way from w_{T-K} to w_T, how far off the forward run may end"""
SLOWER = "Retrain at a lower learning rate."
OPTIMIZER = "optimizer"
"""names what a state holds of the optimiser at the checkpoint"""


@dataclass(frozen=True)
class Rewound:
    """The model and its optimiser before step T-K, the K batches from there on, all T step sizes; how it was found."""

    checkpoint: Fitted
    batches: tuple[Tensor, ...]
    rates: tuple[float, ...]
    facts: Mapping[str, Json]


def from_checkpoint(
    method: Rewind, problem: Problem, examples: Examples, learned: Learned, progress: Progress
) -> Rewound:
    """Take w_{T-K} from the trajectory that the training recorded, or train up to there once more.

    Raises:
        Refused: there is no trajectory and no training to repeat.
    """
    if problem.ingredients:
        return _trained_again(method, problem, examples, progress)
    trajectory = learned.trajectory
    if trajectory is None:
        raise Refused(
            "Rewinding to a checkpoint needs the trajectory, and this model comes without one.",
            "Choose source=proximal if it was trained by full-batch gradient descent, or newton or safe.",
        )
    full = all(len(batch) == len(examples) for batch in trajectory.batches)
    length = LENGTHS[method.steps_from](method, Past(problem, examples, learned.weights, trajectory.rates, full))
    start = len(trajectory) - length.steps
    _, checkpoint, _ = next(replay(problem, examples, trajectory, start))
    facts: dict[str, Json] = {"source": "checkpoint", "full_batch": full, "chosen": dict(length.why)}
    return Rewound(Fitted(checkpoint), trajectory.batches[start:], trajectory.rates, facts)


def _trained_again(method: Rewind, problem: Problem, examples: Examples, progress: Progress) -> Rewound:
    """Take the first T-K steps of the training again, for the weights, buffers and optimiser's state after them.

    Raises:
        Refused: the model was trained elsewhere, or K is to follow from a bound, which is about plain steps.
    """
    if problem.recipe.weights is not None:
        raise Refused(
            "The checkpoint comes from repeating the training, and this model was trained elsewhere.",
            "Train it here, or choose safe.",
        )
    if method.steps_from != "fraction":
        require_plain(problem.ingredients, f"steps_from {method.steps_from}", "Set steps_from to fraction")
    plan = planned_by(problem, examples.positions)
    start = len(plan.batches) - method.share_of(len(plan.batches))
    checkpoint = descend(problem, examples, plan.before(start), progress=progress)
    full = all(len(batch) == len(examples) for batch in plan.batches)
    facts: dict[str, Json] = {"source": "checkpoint", "full_batch": full, "chosen": {}}
    return Rewound(checkpoint, tuple(plan.batches[start:]), tuple(plan.rates), facts)


def proximal(method: Rewind, problem: Problem, examples: Examples, learned: Learned, progress: Progress) -> Rewound:
    """Undo K full-batch gradient steps, in float64 (algorithm 3).

    The fixed point v <- w_{t+1} + eta_t s_t(v) g(v) contracts when eta_t L < 1; its error grows by
    1/(1 - eta_t L) a step back, so the K steps are taken forward again and must return to the given weights.

    Raises:
        Refused: mini-batches, more than plain steps, no step to undo, a step that cannot be undone, or a forward run
            that ends elsewhere.
    """
    require_plain(problem.ingredients, "source proximal", "Choose source=checkpoint")
    if problem.training.step_size is not None and problem.training.step_size < len(examples):
        raise Refused(
            "The proximal-point method undoes full-batch gradient descent; this training uses mini-batches.",
            "Record the trajectory and choose source=checkpoint, or use newton or safe.",
        )
    steps = problem.training.epochs
    if steps == 0:
        raise Refused("There is no gradient step to undo.", "Use newton or retrain.")
    rates = tuple(problem.training.rate(step, steps) for step in range(steps))
    precise = problem.double()
    length = LENGTHS[method.steps_from](method, Past(problem, examples, learned.weights, rates, full_batch=True))
    start = steps - length.steps
    v = learned.weights.to(problem.device, torch.float64)
    for undone, rate in enumerate(reversed(rates[start:])):
        progress(undone / length.steps)
        v = _undo(precise, examples, v, rate)
    checkpoint = v.to(problem.dtype)
    batches = (examples.positions.cpu(),) * (steps - start)
    facts: dict[str, Json] = {
        "source": "proximal",
        "full_batch": True,
        "chosen": dict(length.why),
        "round_trip": _round_trip(problem, examples, checkpoint, learned.weights, rates[start:]),
    }
    return Rewound(Fitted(checkpoint), batches, rates, facts)


def _undo(problem: Problem, examples: Examples, after: Tensor, rate: float) -> Tensor:
    v = after
    for _ in range(ITERATIONS):
        stepped, _ = advance(problem, examples, examples.positions, v, rate)
        residual = after - stepped
        v = v + residual
        if float(residual.norm()) <= PRECISION * max(1.0, float(after.norm())):
            return v
    raise Refused(
        f"A step with learning rate {rate:g} could not be undone: the proximal-point iteration does not contract.",
        "The learning rate times the curvature must stay below 1; use newton or retrain.",
    )


def _round_trip(
    problem: Problem, examples: Examples, checkpoint: Tensor, weights: Tensor, rates: Sequence[float]
) -> float:
    w = checkpoint
    for rate in rates:
        w, _ = advance(problem, examples, examples.positions, w, rate)
    travelled = float((weights - checkpoint).norm())
    error = float((w - weights).norm()) / travelled if travelled > 0 else 0.0
    if not error <= TOLERANCE:
        raise Refused(
            f"The steps taken again from the rewound weights end {error:.2g} of the way off.",
            "Too many steps are undone for this precision: lower fraction, or use newton or retrain.",
        )
    return error


def by_fraction(method: Rewind, past: Past) -> Length:
    """Return K, the option ``fraction`` of all steps to the nearest whole one, without a measurement."""
    return Length(method.share_of(len(past.rates)), {})


def by_corollary(method: Rewind, past: Past) -> Length:
    """Return the K of the paper's corollary 3.2."""
    return past.by_corollary(method.wanted(), method.feature_norm)


def by_bound(method: Rewind, past: Past) -> Length:
    """Return the least K by our bound. Raises Refused for mini-batches, and where rounding alone exceeds it."""
    return past.by_bound(method.wanted(), method.feature_norm, method.reference)


LENGTHS = {"fraction": by_fraction, "corollary": by_corollary, "bound": by_bound}
PRECISIONS = ("training", "float64")
SOURCES = {"checkpoint": from_checkpoint, "proximal": proximal}


@dataclass(frozen=True)
class Rewind(Method):
    """R2D. See the module's docstring for the equations.

    Args:
        fraction: K/T in (0, 1]: the share of the training that an update repeats. 1 is retraining.
        steps_from: how K is chosen: ``fraction``; ``corollary`` (corollary 3.2) or ``bound`` (ours) from ``forgotten``,
            the samples that may leave in all, and the policy's epsilon, delta and noise_std. Neither is a claim.
        source: ``checkpoint`` (needs the trajectory) or ``proximal`` (trained elsewhere by gradient descent).
        reference: what a thinned batch is divided by, ``renormalised`` or ``fixed-denominator``.
        feature_norm: for a linear head, a bound on the norm of a sample's features (the constant 1 of a bias
            included) that does not come from the data; checked at preparation. L follows from it in closed form.
        precision: ``training`` repeats the steps in the training's own dtype; ``float64``, as under ``proved``, trains
            once more in float64 at preparation, because a proof counts rounding and float32's would drown it.
    """

    name: ClassVar[str] = "rewind"
    secret_state: ClassVar[tuple[str, ...]] = (
        "The checkpoint that every update starts from was trained on everyone, the deleted people included.",
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})
    follows: ClassVar[frozenset[Ingredient]] = frozenset(Ingredient)

    fraction: float = 0.41
    steps_from: str = "fraction"
    epsilon: float | None = field(default=None, metadata=OF_POLICY)
    delta: float = field(default=1e-5, metadata=OF_POLICY)
    noise_std: float | None = field(default=None, metadata=OF_POLICY)
    forgotten: int | None = None
    source: str = "checkpoint"
    reference: str = field(default="renormalised", metadata=OF_POLICY)
    feature_norm: float | None = None
    precision: str = field(default="training", metadata=INTERNAL)

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise Refused(f"fraction is {self.fraction}.", "Choose a share of the training in (0, 1].")
        if self.steps_from not in LENGTHS:
            raise Refused(f"steps_from is {self.steps_from!r}.", f"Choose one of {', '.join(LENGTHS)}.")
        if self.steps_from != "fraction":
            self.wanted()
        if self.source not in SOURCES:
            raise Refused(f"source is {self.source!r}.", f"Choose one of {', '.join(SOURCES)}.")
        if self.reference not in REFERENCES:
            raise Refused(f"reference is {self.reference!r}.", f"Choose one of {', '.join(REFERENCES)}.")
        if self.precision not in PRECISIONS:
            raise Refused(f"precision is {self.precision!r}.", f"Choose one of {', '.join(PRECISIONS)}.")

    def under(self, guarantee: Guarantee, recipe: Recipe) -> Method:
        """Return the method in float64 where it is ``proved``."""
        return replace(self, precision="float64") if guarantee is Guarantee.PROVED else self

    def share_of(self, steps: int) -> int:
        """Return ``fraction`` of so many steps, to the nearest whole one and at least 1."""
        return max(1, round(self.fraction * steps))

    def wanted(self) -> Wanted:
        """Return what K is chosen from. Raises Refused where an option for it is missing or out of range."""
        epsilon, noise_std, forgotten = self.epsilon, self.noise_std, self.forgotten
        if epsilon is None or noise_std is None or forgotten is None:
            what = f"steps_from is {self.steps_from!r}, and epsilon, noise_std or forgotten is missing."
            raise Refused(what, "Set forgotten (the policy has epsilon and noise_std), or set steps_from to fraction.")
        if not (0 < epsilon < math.inf and 0 < noise_std < math.inf and forgotten > 0 and 0 < self.delta < 1):
            what = f"epsilon is {epsilon}, noise_std {noise_std}, forgotten {forgotten}, delta {self.delta}."
            raise Refused(what, "Choose numbers above zero, and a delta below 1.")
        return Wanted(epsilon, self.delta, noise_std, forgotten)

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Find w_{T-K}. ``facts["report"]`` holds K, T and the reference.

        Raises Refused for a converged model and where ``source`` cannot find w_{T-K}.
        """
        require_followed(self, problem.recipe)
        if problem.training.converge is not None:
            raise Refused(
                "A model that was trained to convergence did not end in its last gradient step.",
                "Use newton or retrain, or train without converge.",
            )
        if self.precision == "float64" and learned.weights.dtype != torch.float64:
            problem, learned = problem.double(), _again(problem.double(), examples)
        if self.feature_norm is not None:
            require_within(problem, examples, self.feature_norm)
        rewound = SOURCES[self.source](self, problem, examples, learned, progress)
        facts: dict[str, Json] = {
            "samples": len(examples),
            "forgotten": 0,
            "steps": len(rewound.rates),
            "rewound": len(rewound.batches),
            OPTIMIZER: rewound.checkpoint.facts,
        }
        tensors = {
            "checkpoint": rewound.checkpoint.weights,
            **{f"{OPTIMIZER}.{name}": tensor for name, tensor in rewound.checkpoint.tensors.items()},
            "rates": torch.tensor(rewound.rates, dtype=torch.float64),
            "positions": examples.positions.cpu(),
        }
        state = State(learned.weights, tensors | _pack(rewound.batches), facts | dict(rewound.facts))
        state = replace(state, facts={**state.facts, "report": self._report(state)})
        progress(1.0)
        return state

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Take K steps from the checkpoint on ``retain``. A sample that had left before has no effect.

        Raises Refused when no sample is left, or a sample of the forget set is retained or was never trained on.
        """
        if not forget:
            return Forgotten(state)
        kept = _retained(state, forget, retain)
        w = self.steps_again(problem, state, kept)
        absent = ~torch.isin(state.tensors["positions"].cpu(), kept.positions.cpu())
        facts = dict(state.facts) | {"forgotten": int(absent.sum())}
        return Forgotten(replace(state, weights=w, facts=facts), {"steps": _count(state, "rewound")})

    def steps_again(self, problem: Problem, state: State, kept: Examples) -> Tensor:
        """Return the weights (d,) after the K steps on ``kept``, in the batches and at the step sizes of the training.

        Raises Refused where they stop being finite.
        """
        checkpoint = _checkpoint(state)
        problem = problem.cast(checkpoint.weights.dtype)
        batches, rates = tuple(_unpack(state)), state.tensors["rates"].tolist()
        start = len(rates) - len(batches)
        if problem.ingredients:
            everyone = len(state.tensors["positions"])
            plan = Steps(batches, rates[start:], steps_per_epoch(problem, everyone), self.reference, start)
            try:
                return descend(problem, kept, plan, start=checkpoint).weights
            except RecipeError as error:
                raise Refused(error.what, SLOWER) from error
        w = checkpoint.weights.to(problem.device)
        for positions, rate in zip(batches, rates[start:], strict=True):
            w, _ = advance(problem, kept, positions, w, rate, reference=self.reference)
        if not bool(torch.isfinite(w).all()):
            raise Refused("The weights are not finite after the repeated steps.", SLOWER)
        return w

    def bound(self, guarantee: Guarantee) -> Bound | None:
        """Return the bound of full-batch descent, with constants that need no data (``proved``) or were measured."""
        if guarantee is Guarantee.PROVED:
            return RewoundProof(self.reference, self.source, self.feature_norm)
        return RewoundEstimate(self.reference) if guarantee is Guarantee.ESTIMATED else None

    def _report(self, state: State) -> dict[str, Json]:
        return {
            "reference": self.reference,
            "steps": state.facts["steps"],
            "rewound": state.facts["rewound"],
            **cast("dict[str, Json]", state.facts["chosen"]),
        }


def _again(problem: Problem, examples: Examples) -> Learned:
    if problem.recipe.weights is not None:
        raise Refused("A model trained elsewhere cannot be trained again in float64.", "Train it here.")
    return train(problem, examples)


def _checkpoint(state: State) -> Fitted:
    """Return what every update starts from; a state of a plain training has no optimiser's."""
    prefix = f"{OPTIMIZER}."
    tensors = {name.removeprefix(prefix): value for name, value in state.tensors.items() if name.startswith(prefix)}
    return Fitted(state.tensors["checkpoint"], tensors, state.facts.get(OPTIMIZER))


def _retained(state: State, forget: ForgetSet, retain: Examples | None) -> Examples:
    kept = retained(forget, retain)
    trained = state.tensors["positions"].cpu()
    gone = torch.tensor(forget.positions, dtype=torch.int64)
    if not bool(torch.isin(gone, trained).all()):
        raise Refused("A sample of the forget set was never trained on.", "Forget samples of this training alone.")
    return kept


def _pack(batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """Store the batches, equal neighbours once: a full batch one time, not K times."""
    stored: list[Tensor] = []
    which: list[int] = []
    for batch in batches:
        if not stored or (stored[-1] is not batch and not torch.equal(stored[-1], batch)):
            stored.append(batch)
        which.append(len(stored) - 1)
    return {
        "batches": torch.cat(stored),
        "sizes": torch.tensor([len(batch) for batch in stored], dtype=torch.int64),
        "which": torch.tensor(which, dtype=torch.int64),
    }


def _unpack(state: State) -> Iterator[Tensor]:
    stored = torch.tensor_split(state.tensors["batches"], state.tensors["sizes"].cumsum(0)[:-1].tolist())
    return (stored[index] for index in state.tensors["which"].tolist())


def _count(state: State, name: str) -> int:
    return int(state.facts[name])  # type: ignore[arg-type]


METHOD = Rewind
