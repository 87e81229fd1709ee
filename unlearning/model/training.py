"""The one training loop: deterministic, with the trajectory that methods need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearning.model.convex import converge
from unlearning.model.descent.loop import descend
from unlearning.model.descent.plan import Steps, denominator_of
from unlearning.model.imports import require_same_accuracy
from unlearning.model.problem import Problem, build
from unlearning.recipe import Recipe
from unlearning.types import Examples, Learned, Progress, RecipeError, Trajectory, silent


@dataclass(frozen=True)
class Batch:
    """The samples of one step that take part, and the number that their summed gradient is divided by."""

    inputs: Tensor
    targets: Tensor
    denominator: int

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Whole:
    """A training in one piece."""


def schedule(problem: Problem, positions: Tensor) -> Iterator[Tensor]:
    """Yield the positions of each step's batch, in order; they follow from the seed and from all positions alone."""
    training = problem.training
    yield from drawn(positions.cpu(), training.step_size, training.epochs, training.seed)


def drawn(everyone: Tensor, batch_size: int | None, epochs: int, seed: int) -> Iterator[Tensor]:
    """Yield the positions of each step's batch for ``epochs`` passes over ``everyone`` (n,), shuffled by ``seed``."""
    size = batch_size or len(everyone)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        if size >= len(everyone):
            yield everyone
            continue
        order = torch.randperm(len(everyone), generator=generator)
        yield from (everyone[part] for part in _split(order, size))


def steps_per_epoch(problem: Problem, count: int) -> int:
    """Return the steps in one pass over ``count`` samples."""
    return math.ceil(count / min(problem.training.step_size or count, count))


def batch_of(examples: Examples, positions: Tensor, denominator: int) -> Batch:
    """Return those of ``examples`` at ``positions``, in that order; unknown positions are left out."""
    places = examples.places(positions)
    return Batch(*examples.pick(places), denominator)


def step_gradient(problem: Problem, w: Tensor, batch: Batch) -> Tensor:
    """Return (sum of the batch's data gradients) / denominator + decay * w, (d,); each sample clipped in the sum."""
    if len(batch) == 0:
        return problem.decay * w
    gradient = data_gradient(problem, w, batch.inputs, batch.targets)
    return gradient.mul_(len(batch) / batch.denominator).addcmul_(problem.decay, w)


def data_gradient(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean data gradient (d,), each sample's clipped at ``Training.sample_clip`` where that is set."""
    limit = problem.training.sample_clip
    if limit is None:
        return _in_parts(problem, w, x, y)
    total = torch.zeros_like(w)
    rows = max(1, 2**24 // problem.dimension)
    for inputs, targets in zip(_split(x, rows), _split(y, rows), strict=True):
        gradients = problem.sample_gradients(w, inputs, targets)
        norms = gradients.norm(dim=1, keepdim=True)
        total += (gradients * (limit / norms.clamp(min=limit))).sum(dim=0)
    return total / len(x)


def _in_parts(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean data gradient (d,), over parts of ``batch_size`` samples where a step averages over several."""
    size = problem.training.batch_size
    if problem.training.accumulate == 1 or size is None or len(x) <= size:
        return problem.gradient(w, x, y)
    parts = zip(_split(x, size), _split(y, size), strict=True)
    total = torch.zeros_like(w)
    for inputs, targets in parts:
        total += problem.gradient(w, inputs, targets) * (len(inputs) / len(x))
    return total


def scale_of(problem: Problem, gradient: Tensor) -> float:
    """Return s = min(1, C / ||g||); 1 where the training does not clip."""
    clip = problem.training.clip
    if clip is None:
        return 1.0
    norm = float(gradient.norm())
    return 1.0 if norm <= clip else clip / norm


def advance(
    problem: Problem, kept: Examples, positions: Tensor, w: Tensor, rate: float, *, reference: str = "renormalised"
) -> tuple[Tensor, float]:
    """Take one step of the training: w_{t+1} and s_t, from w_t (d,), the planned ``positions`` and those ``kept``."""
    batch = batch_of(kept, positions, len(positions))
    present = Batch(batch.inputs, batch.targets, denominator_of(reference, len(positions), len(batch)))
    gradient = step_gradient(problem, w, present)
    scale = scale_of(problem, gradient)
    return torch.sub(w, gradient, alpha=rate * scale), scale


def train(
    problem: Problem,
    examples: Examples,
    *,
    omit: Sequence[int] = (),
    planned: Tensor | None = None,
    reference: str = "renormalised",
    progress: Progress = silent,
) -> Learned:
    """Train from ``problem.initial()``; with ``Training.converge``, end in the minimiser (weights in float64).

    The batch order is drawn over ``examples``: their number and order decide it, and their positions do not.

    With ``planned`` (positions) or ``omit`` it is a same-order retraining, a ruler for other methods that is never
    published. The batch order is that of ``planned`` (default: of ``examples``); those that are not among ``examples``,
    and those in ``omit``, are left out of their batches; initialisation, batch order and step sizes stay those of the
    full training. A batch that is left empty steps by weight decay alone. ``reference`` says what a thinned batch is
    divided by: those present, or |B_t|. A training in a world is handed the kept samples, and neither ``planned`` nor
    ``reference`` means anything.

    A training that is more than plain gradient steps (``Problem.ingredients``) leaves no trajectory.

    Raises:
        RecipeError: no sample is left, or the weights stop being finite.
    """
    kept = examples.without(torch.tensor(omit, dtype=torch.int64)) if len(omit) else examples
    if len(kept) == 0:
        raise RecipeError("No sample is left to train on.", "Retire the model instead.")
    if problem.fresh is not None:
        return Learned(problem.fresh(Whole(), kept, None, progress).weights)
    everyone = examples.positions if planned is None else planned
    if problem.ingredients:
        plan = planned_by(problem, everyone, reference)
        return Learned(descend(problem, kept, plan, progress=progress).weights)
    learned = _descend(problem, everyone, kept, reference, progress)
    if problem.training.converge is None:
        return learned
    minimiser = _minimiser(problem, learned.weights, kept, denominator_of(reference, len(everyone), len(kept)))
    return Learned(minimiser, learned.trajectory)


def retrained(
    problem: Problem, examples: Examples, w: Tensor, omit: Sequence[int], *, reference: str = "renormalised"
) -> Tensor:
    """Return the weights of a training without ``omit``, given those of the training with them, w (d,).

    Where a training ends in the minimiser, which is unique, w is near it, and Newton's method begins there. Any other
    training begins as ``train`` does.

    Raises:
        RecipeError, Refused: as ``train``.
    """
    if problem.training.converge is None or problem.fresh is not None or problem.ingredients:
        return train(problem, examples, omit=omit, reference=reference).weights
    kept = examples.without(torch.tensor(omit, dtype=torch.int64))
    return _minimiser(problem, w, kept, denominator_of(reference, len(examples), len(kept)))


def _minimiser(problem: Problem, w: Tensor, kept: Examples, denominator: int) -> Tensor:
    return converge(problem.double(), w.double(), kept, problem.training.converge or 0.0, denominator)


def learn(recipe: Recipe, problem: Problem, examples: Examples, progress: Progress = silent) -> Learned:
    """Load the model trained elsewhere if the recipe names one, else ``train``."""
    if recipe.weights is None:
        return train(problem, examples, progress=progress)
    weights = problem.flatten(recipe.weights)
    require_same_accuracy(problem, build(recipe, recipe.training.seed), recipe.weights)
    if problem.training.converge is None:
        if recipe.trajectory is not None:
            verify(problem, examples, recipe.trajectory, weights)
        return Learned(weights, recipe.trajectory)
    double = problem.double()
    return Learned(converge(double, double.flatten(recipe.weights), examples, problem.training.converge), None)


def planned_by(problem: Problem, everyone: Tensor, reference: str = "renormalised") -> Steps:
    """Return the steps of the whole training over the positions ``everyone``."""
    batches = tuple(schedule(problem, everyone))
    rates = tuple(problem.training.rate(step, len(batches)) for step in range(len(batches)))
    return Steps(batches, rates, steps_per_epoch(problem, len(everyone)), reference)


def _descend(problem: Problem, everyone: Tensor, kept: Examples, reference: str, progress: Progress) -> Learned:
    plan = planned_by(problem, everyone, reference)
    batches, rates = tuple(plan.batches), tuple(plan.rates)
    starts = (*range(0, len(batches), plan.steps_a_pass), len(batches))
    start = Trajectory(batches, rates, (1.0,) * len(batches), (problem.initial(),) * len(starts), starts)
    trajectory = _follow(problem, kept, start, reference, progress)
    return Learned(trajectory.checkpoints[-1], trajectory)


def prolong(problem: Problem, kept: Examples, w: Tensor, epochs: int, first: int) -> Trajectory:
    """Take ``epochs`` more passes over ``kept`` from w (d,), as steps ``first``, ``first`` + 1, ... of the training.

    Step sizes go on decaying; the batch order follows from the training's seed, ``first`` and the kept samples.

    Raises:
        RecipeError: the weights stop being finite.
    """
    training, seed = problem.training, (problem.training.seed + first) % 2**63
    batches = tuple(drawn(kept.positions.cpu(), training.step_size, epochs, seed))
    rates = tuple(training.learning_rate * training.decay ** (first + step) for step in range(len(batches)))
    starts = (*range(0, len(batches), steps_per_epoch(problem, len(kept))), len(batches))
    plan = Trajectory(batches, rates, (1.0,) * len(batches), (w,) * len(starts), starts)
    return _follow(problem, kept, plan, "renormalised", silent)


def retrace(
    problem: Problem,
    examples: Examples,
    trajectory: Trajectory,
    omit: Sequence[int],
    *,
    reference: str = "fixed-denominator",
) -> Tensor:
    """Return the final weights (d,) had ``omit`` been absent from every batch of a recorded training.

    Clipping is decided again at every step. Without ``omit`` this is the training itself, bit for bit.

    Raises:
        RecipeError: the weights stop being finite.
    """
    kept = examples.without(torch.tensor(omit, dtype=torch.int64))
    return _follow(problem, kept, trajectory, reference, silent).checkpoints[-1]


def _follow(problem: Problem, kept: Examples, plan: Trajectory, reference: str, progress: Progress) -> Trajectory:
    """Take the plan's steps from its first checkpoint; scales and later checkpoints are those that come out."""
    w = plan.checkpoints[0].to(problem.device)
    marks = frozenset(plan.starts[:-1])
    checkpoints: list[Tensor] = []
    scales: list[float] = []
    for step, (positions, rate) in enumerate(zip(plan.batches, plan.rates, strict=True)):
        if step in marks:
            checkpoints.append(w)
            _require_finite(w, step)
            progress(step / len(plan))
        w, scale = advance(problem, kept, positions, w, rate, reference=reference)
        scales.append(scale)
    _require_finite(w, len(plan))
    progress(1.0)
    return Trajectory(plan.batches, plan.rates, tuple(scales), (*checkpoints, w), plan.starts)


def replay(
    problem: Problem, examples: Examples, trajectory: Trajectory, start: int = 0
) -> Iterator[tuple[int, Tensor, Batch]]:
    """Yield (t, w_t, the batch of step t) for t = start..T-1, bit for bit as in the training.

    Weights are computed again from the nearest checkpoint, so they are on ``problem.device`` and in the training's
    dtype.

    Raises:
        RecipeError: a sample of some batch is missing from ``examples``.
    """
    anchors = dict(zip(trajectory.starts, trajectory.checkpoints, strict=True))
    first = max(anchor for anchor in anchors if anchor <= start)
    w = anchors[first].to(problem.device)
    for step in range(first, len(trajectory)):
        w = anchors[step].to(problem.device) if step in anchors else w
        positions = trajectory.batches[step]
        batch = batch_of(examples, positions, len(positions))
        if len(batch) != len(positions):
            raise RecipeError(
                f"Step {step} used {len(positions)} samples; {len(positions) - len(batch)} of them are missing.",
                "Replay needs every sample of the training.",
            )
        if step >= start:
            yield step, w, batch
        if step + 1 not in anchors:
            move = trajectory.rates[step] * trajectory.scales[step]
            w = torch.sub(w, step_gradient(problem, w, batch), alpha=move)


def _split(values: Tensor, sizes: int | list[int]) -> tuple[Tensor, ...]:
    return torch.split(values, sizes)


def verify(problem: Problem, examples: Examples, trajectory: Trajectory, weights: Tensor) -> None:
    """Check that a recorded trajectory is plain gradient descent on this problem and ends in ``weights`` (d,).

    Raises:
        RecipeError: it ends elsewhere, or the steps between two checkpoints lead away from the second by more than
            1 % of the distance between them.
    """
    if not torch.equal(trajectory.checkpoints[-1].to(weights), weights):
        raise RecipeError("The recorded trajectory does not end in the given weights.", "Give those it ended in.")
    arrivals = dict(zip(trajectory.starts, trajectory.checkpoints, strict=True))
    origin = trajectory.checkpoints[0].to(weights)
    for step, w, batch in replay(problem, examples, trajectory):
        if step + 1 not in arrivals:
            continue
        goal = arrivals[step + 1].to(weights)
        change = trajectory.rates[step] * trajectory.scales[step] * step_gradient(problem, w, batch)
        if float((w - change - goal).norm()) > 0.01 * float((goal - origin).norm()) + 1e-6 * float(goal.norm()):
            raise RecipeError(
                f"The recorded weights after step {step} are not a gradient step of this recipe.",
                "Record plain gradient descent (no momentum, no adaptive rates) on the recipe's loss and decay.",
            )
        origin = goal


def _require_finite(w: Tensor, step: int) -> None:
    if not bool(torch.isfinite(w).all()):
        raise RecipeError(f"The weights are not finite after {step} steps.", "Lower the learning rate.")


class Recorder:
    """Records a user's own training loop: call ``step`` before each update and ``finish`` after the last.

    The loop must take plain gradient steps, ``w <- w - rate * scale * (mean data gradient + decay * w)``, on
    ``problem``'s objective; momentum and adaptive optimisers have no trajectory form.
    """

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._batches: list[Tensor] = []
        self._rates: list[float] = []
        self._scales: list[float] = []
        self._checkpoints: list[Tensor] = []
        self._starts: list[int] = []

    def step(self, weights: Tensor, positions: Tensor, rate: float, scale: float = 1.0) -> None:
        """Keep, before a step, the weights (d,), the samples' positions, eta_t and the clipping scale s_t."""
        if len(self._batches) % self._every == 0:
            self._checkpoints.append(weights.detach().clone())
            self._starts.append(len(self._batches))
        self._batches.append(positions.detach().cpu().clone())
        self._rates.append(rate)
        self._scales.append(scale)

    def finish(self, weights: Tensor) -> Trajectory:
        """Return the trajectory after the last step, which ended in ``weights`` (d,)."""
        return Trajectory(
            tuple(self._batches),
            tuple(self._rates),
            tuple(self._scales),
            (*self._checkpoints, weights.detach().clone()),
            (*self._starts, len(self._batches)),
        )
