"""SAFE: forgetting a stream by one normalised step from the trained weights.

Source: Shen et al., "Machine Unlearning for Streaming Forgetting" (arXiv 2507.15280).

Notation: w_0 (d,) the trained weights, n_0 samples, F_t those forgotten in update t, M_t all forgotten so
far, n_t = n_0 - M_t, l the data loss, f(x; w) the class probabilities, mu the weight decay.

    r_t = (n_{t-1} r_{t-1} - sum_{F_t} grad l(w_0)) / n_t,   r_0 = mean grad l(w_0)     retention, eq. 15
          (kept as the sum n_t r_t)
    s_t = forgetting gradient at w_0 of  mean over the forgotten of  KL(f(x; w) || q_t(x) f(x; w_0))
        = mean over the forgotten of  - sum_y log q_{t,y}(x) grad f_y(x; w_0)
    g_t = r_t + mu w_0 + lambda s_t
    w_t = w_0 - gamma_t g_t / ||g_t|| - b_t,   b_t from N(0, phi^2) in each coordinate, drawn again in every update

q_t(x) is a vector over classes: the ratio of the joint densities of (x, y) after and before the deletions,
n_{t,y} N(x; m_{t,y}, S_{t,y}) / (n_{0,y} N(x; m_{0,y}, S_{0,y})), a Gaussian per class. A scalar q would make
the forgetting gradient exactly zero, because sum_y grad f_y = 0; for the same reason the normaliser of
q_t f(w_0) and the entropy term of the KL divergence drop out at w_0.

Deviations from the paper, each with its reason:

* Eq. 23 (the update of the covariances) turns them indefinite after one round; ``unlearning.methods.safe.moments``
  has the exact down-date, equal to recomputation.
* ``mode="freeze"`` (default) evaluates q when a sample is forgotten, sums its gradient and drops the sample:
  forgetting must not require remembering, and an update costs the same in every round. ``mode="keep"`` is
  the paper's: every forgotten sample is kept and q is evaluated again in each update.
* ``step="share"`` (default): gamma_t = reach ||w_0|| M_t / n_0, because to first order the distance to
  retraining is proportional to the fraction forgotten, and because the number of rounds is not known beforehand.
  ``step="published"`` is theorem 2's gamma = sqrt(W) / (K sqrt(T)), the same in each of T rounds, with W = ||w_0||
  (the paper: a bound on the norm of the weights), K = ``divisor`` and T = ``rounds``. gamma is a length of weights and
  ``reach`` a bare number; theorem 2 has the root of a length, so that K is in the inverse of that root, and no K
  suits two models.
* The paper tunes K for each data set by the accuracies that it then reports. Here preparation forgets a drawn tenth of
  the people for a trial, and takes the longest step of ``LENGTHS`` that loses at most ``allowed_loss`` of the holdout's
  accuracy, forgets no more than a retraining, and leads no farther away from it: after a training without the trial's
  people their mean loss is at least as high, and its weights are at most as far as from w_0. A model that was trained
  elsewhere has no such training to compare with.
* lambda is a bare number: the two gradients have one dimension. Their lengths differ by orders of magnitude, and by
  which follows from model and data; so it can be given as ``ratio``, of lambda s_t to r_t + mu w_0.
* The paper's perturbation b_t is off by default, and carries no claim: theorem 2 refers to the Gaussian mechanism,
  and bounds neither what the step leaves of the forgotten nor where a retraining ends. ``perturbation`` gives
  phi / ||w_0||; ``published_perturbation`` is theorem 2's, 4.84 for epsilon = 1 at delta = 1e-5. The theorem calls
  phi a variance; the formula is that of the mechanism's standard deviation, which phi is here.
* Weight decay is added apart from the data loss, so that r_0 + mu w_0 vanishes at a stationary point and the
  direction is that of the forgotten samples.
* Densities are taken in at most ``features`` dimensions (a seeded orthonormal projection of the inputs), with
  covariances shrunk towards the pooled one: a class with fewer samples than dimensions has no density.
* log q is cut to [-``cut``, ``cut``]: Gaussian tails are quadratic, one outlier would own the direction.

SAFE has no proof (guarantee ``none``): ``evaluation`` measures it. With the step by ``share``, accuracy on the
retained samples falls with that on the forgotten ones; ``python -m benchmarks.methods_rewind_safe`` has figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.methods.safe.moments import Moments
from unlearning.model.method import INTERNAL, Method, require_followed
from unlearning.model.problem import Problem
from unlearning.quality.distance_left import calibration_sets, distance_left, retraining
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
    silent,
)

CHUNK = 1024
"""samples per pass over the data: bounds the memory of prepare and forget"""


def class_probabilities(outputs: Tensor) -> Tensor:
    """Return f, the softmax of (n, C) outputs; a single output is the logit of class 1 of two."""
    two = torch.cat([torch.zeros_like(outputs), outputs], dim=1) if outputs.shape[1] == 1 else outputs
    probabilities: Tensor = torch.softmax(two, dim=1)
    return probabilities


def forgetting_gradient(problem: Problem, origin: Tensor, inputs: Tensor, log_q: Tensor) -> Tensor:
    """Return - sum_y log q_y(x) grad f_y(x; w_0), summed over the samples, (d,); ``log_q`` is (k, C)."""
    total = torch.zeros_like(origin)
    for start in range(0, len(inputs), CHUNK):
        part = slice(start, start + CHUNK)
        w = origin.detach().clone().requires_grad_(True)
        objective = -(log_q[part].to(w.dtype) * class_probabilities(problem.outputs(w, inputs[part]))).sum()
        total += torch.autograd.grad(objective, w)[0]
    return total


def frozen(
    safe: Safe, problem: Problem, state: State, after: Moments, inputs: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Evaluate q when a sample is forgotten: the gradients are summed, the sample is dropped at once.

    Returns the summed forgetting gradient of all samples forgotten so far, (d,), and the mode's new tensors.
    """
    fresh = forgetting_gradient(problem, state.tensors["origin"], inputs, safe.log_q(state, after, inputs))
    total = state.tensors["forgetting"] + fresh
    return total, {"forgetting": total}


def kept(
    safe: Safe, problem: Problem, state: State, after: Moments, inputs: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Keep every forgotten sample, as the paper does: q is evaluated again in each update. Returns as ``frozen``."""
    everyone = torch.cat([state.tensors["kept"], inputs])
    log_q = safe.log_q(state, after, everyone)
    return forgetting_gradient(problem, state.tensors["origin"], everyone, log_q), {"kept": everyone}


MODES = {"freeze": frozen, "keep": kept}
OTHERS = "Choose another method."
TINY = 1e-300
"""in place of a length of 0 that is divided by"""


def share_step(reach: float, rounds: int, norm: float, share: float) -> float:  # noqa: ARG001 (for any number)
    """Return our step's length, in proportion to ``share``, the part of all samples that is forgotten."""
    return reach * norm * share


def published_step(divisor: float, rounds: int, norm: float, share: float) -> float:  # noqa: ARG001 (in every round)
    """Return theorem 2's step length, with W = ``norm``."""
    return math.sqrt(norm) / (divisor * math.sqrt(rounds))


def published_perturbation(epsilon: float, delta: float) -> float:
    """Return theorem 2's phi / W = sqrt(2 ln(1.25 / delta)) / epsilon, to hand to ``Safe.perturbation``."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


LENGTHS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "share": ("reach", (0.4, 0.2, 0.1, 0.05, 0.025)),
    "published": ("divisor", (1.0, 2.5, 5.0, 10.0)),
}
"""by step: the option that sets its length, and what preparation chooses from, the longest step first; the divisors are
those that the paper tries on MNIST"""
BEFORE_CHOICE = {"reach": 0.1, "divisor": 2.5}
"""what a generation works with that was prepared before lengths were chosen"""
TRIAL_SHARE = 0.1
"""of the people, forgotten for a trial"""
STEPS: Mapping[str, Callable[[float, int, float, float], float]] = {"share": share_step, "published": published_step}


@dataclass(frozen=True)
class Turn:
    """What a round of forgetting comes to before its step's length: g_t (d,), M_t, the state's new tensors."""

    direction: Tensor
    gone: int
    tensors: dict[str, Tensor]
    norms: Mapping[str, Json]
    """evidence: the lengths of the two gradients, and their terms' ratio in the direction"""


@dataclass(frozen=True)
class Safe(Method):
    """SAFE. See the module's docstring for the equations.

    Args:
        step: ``share`` (ours) or ``published`` (theorem 2): how long the step is. Decides almost everything.
        reach: of ``share``: gamma_t = reach * ||w_0|| * M_t / n_0; how far a deletion of all samples would move the
            weights, in units of their norm. None: chosen by preparation.
        divisor: of ``published``: the paper's K. It has 2.5 for MNIST and CIFAR-10, 8 for Fashion. None: chosen by
            preparation.
        allowed_loss: the accuracy on the holdout, a fraction, that a trial deletion with the chosen length may lose.
        rounds: of ``published``: the paper's T, how many updates there will be. One more is refused.
        strength: lambda, the weight of the forgetting gradient against the retention gradient. Saturates,
            because g_t is normalised. The paper has 1e3 (Fashion 6e3) to 1e6 (Tiny ImageNet).
        ratio: the length of the forgetting term over that of the retention term, in place of ``strength``; None: as
            ``strength`` gives it.
        perturbation: phi / ||w_0||, the spread of the paper's b_t; 0: none. It carries no claim.
        mode: ``freeze`` or ``keep``.
        features: at most so many dimensions for the class densities.
        shrinkage: pseudo-samples of the pooled covariance in every class's covariance.
        ridge: added to the pooled covariance's diagonal, in units of the inputs' mean variance at preparation.
        cut: log q is cut to [-cut, cut].
        seed: of the projection.
    """

    name: ClassVar[str] = "safe"
    needs_no_steps: ClassVar[bool] = True
    secret_state: ClassVar[tuple[str, ...]] = (
        "The trained weights, the gradient sums and the class moments that every update starts from depend on the "
        "deleted people, and so does the step's length where registration chose it; in the mode keep their samples "
        "stay too.",
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FORGOTTEN})

    step: str = "share"
    reach: float | None = None
    divisor: float | None = None
    allowed_loss: float = 0.005
    rounds: int = 20
    strength: float = 1.0
    ratio: float | None = None
    perturbation: float = 0.0
    mode: str = "freeze"
    features: int = 64
    shrinkage: float = field(default=10.0, metadata=INTERNAL)
    ridge: float = field(default=1e-2, metadata=INTERNAL)
    cut: float = field(default=10.0, metadata=INTERNAL)
    seed: int = field(default=0, metadata=INTERNAL)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise Refused(f"mode is {self.mode!r}.", f"Choose one of {', '.join(MODES)}.")
        if self.step not in STEPS:
            raise Refused(f"step is {self.step!r}.", f"Choose one of {', '.join(STEPS)}.")
        for name in ("reach", "divisor", "rounds", "shrinkage", "ridge", "cut", "features"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise Refused(f"{name} is {value}.", "Choose a finite number above zero.")
        for name in ("strength", "perturbation", "allowed_loss", "ratio"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise Refused(f"{name} is {value}.", "Choose a finite number, zero or above.")

    @property
    def reads_holdout(self) -> bool:
        """Whether the step's length is chosen."""
        return getattr(self, LENGTHS[self.step][0]) is None

    def most_updates(self) -> int | None:
        """Return T of the published step, which theorem 2 makes for so many."""
        return self.rounds if self.step == "published" else None

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Compute mean data gradient at w_0 and class moments, in one pass over the samples; choose the step's length.

        ``facts["report"]`` holds ``mode`` and the length, as ``reach`` or ``divisor``. Where it was chosen, also
        ``trial_loss``, the accuracy on the holdout that a trial deletion lost; None: nothing could be tried (a single
        person, or no metric), and it is the shortest. And ``trial_forgotten``, by how much the trial raised the loss
        of its people, as a share of what a retraining without them does; None: it was not, or cannot be, retrained.

        SAFE does not aim at the retrained weights, so that no result is refused for its distance to them.

        Raises Refused when the targets are not classes, a class has a single sample (its Gaussian would be that
        sample), or the gradient is not finite.
        """
        require_followed(self, problem.recipe)
        state = self._start(problem, examples, learned.weights.detach().clone(), progress)
        option, _ = LENGTHS[self.step]
        report: dict[str, Json] = {"mode": self.mode, option: getattr(self, option)}
        if report[option] is None:
            report |= self._chosen(problem, examples, learned, state)
        progress(1.0)
        return replace(state, facts={**state.facts, "length": report[option], "report": report})

    def _chosen(self, problem: Problem, examples: Examples, learned: Learned, state: State) -> dict[str, Json]:
        """Return the option with the longest step that a trial deletion allows, else the shortest, and what it did."""
        option, lengths = LENGTHS[self.step]
        problem, origin = problem.cast(state.weights.dtype), state.tensors["origin"]
        holdout = [part.to(problem.device) for part in problem.recipe.holdout_tensors]
        accuracy = problem.accuracy(origin, *holdout)
        if accuracy is None or len(examples.people.distinct()) < 2:
            return {option: lengths[-1], "trial_loss": None, "trial_forgotten": None}
        [drawn] = calibration_sets(examples, TRIAL_SHARE, 1, problem.training.seed)
        trial = _samples_of(drawn)
        turn = self._turn(problem, state, trial)
        retrained = _retrained(problem, examples, learned, drawn)
        before = _mean_loss(problem, origin, trial)
        most = None if retrained is None else _mean_loss(problem, retrained, trial)
        for length in lengths:
            w = _step(origin, turn.direction, self._gamma(problem, state, turn, length))
            left = problem.accuracy(w, *holdout)
            lost = math.inf if left is None else accuracy - left
            forgotten = None if most is None else _share_of_rise(before, _mean_loss(problem, w, trial), most)
            nearer = retrained is None or distance_left(origin, w, retrained) <= 1.0
            if lost <= self.allowed_loss and nearer and (forgotten is None or forgotten <= 1.0):
                break
        return {
            option: length,
            "trial_loss": lost if math.isfinite(lost) else None,
            "trial_forgotten": forgotten if forgotten is not None and math.isfinite(forgotten) else None,
        }

    def _start(self, problem: Problem, examples: Examples, origin: Tensor, progress: Progress) -> State:
        problem = problem.cast(origin.dtype)
        classes = self._classes(problem, origin, examples)
        axes = self._axes(examples.inputs)
        points = _points(examples.inputs, axes)
        moments = Moments.of(points, examples.targets, classes)
        _refuse_single(moments)
        left = torch.zeros(int(examples.positions.max()) + 1, dtype=torch.uint8, device=origin.device)
        left[examples.positions] = 1
        retained = _gradient_sum(problem, origin, examples, lambda share: progress(share / 2))
        tensors = {"origin": origin, "retained": retained, "axes": axes, "left": left}
        tensors |= _pack("before", moments) | _pack("now", moments)
        tensors |= (
            {"kept": examples.inputs[:0].clone()} if self.mode == "keep" else {"forgetting": torch.zeros_like(origin)}
        )
        variance = float(points.var(0, correction=0).mean())
        facts: dict[str, Json] = {"samples": len(examples), "forgotten": 0, "updates": 0}
        return State(origin.clone(), tensors, facts | {"ridge": self.ridge * max(variance, 1e-12)})

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Take one step from w_0 for all samples forgotten so far.

        Raises Refused when the samples are missing, were forgotten before or never trained on, when no sample
        would be left, when a gradient is not finite, and when the published step has made its T updates.
        """
        if not forget:
            return Forgotten(state)
        most = self.most_updates()
        if most is not None and _count(state, "updates") >= most:
            raise Refused(
                f"The published step is made for {most} updates (the option rounds), and all of them were made.",
                "Train the model again, or register it with more rounds.",
            )
        state = replace(state, tensors={name: value.to(problem.device) for name, value in state.tensors.items()})
        origin = state.tensors["origin"]
        problem = problem.cast(origin.dtype)
        turn = self._turn(problem, state, _samples_of(forget))
        option, _ = LENGTHS[self.step]
        prepared = state.facts.get("length", BEFORE_CHOICE[option])
        length = float(getattr(self, option) or prepared)  # type: ignore[arg-type]  # of all JSON values, it is a number
        gamma = self._gamma(problem, state, turn, length)
        spread = self.perturbation * _norm(problem, origin)
        weights = _perturbed(_step(origin, turn.direction, gamma), spread, problem.trained, generator)
        facts = dict(state.facts) | {"forgotten": turn.gone, "updates": _count(state, "updates") + 1}
        tensors = dict(state.tensors) | turn.tensors
        return Forgotten(replace(state, weights=weights, tensors=tensors, facts=facts), {"gamma": gamma, **turn.norms})

    def _turn(self, problem: Problem, state: State, examples: Examples) -> Turn:
        """Return the direction of the step once ``examples`` are forgotten too, whatever its length."""
        left = _strike(state.tensors["left"], examples.positions)
        samples, gone = _count(state, "samples"), _count(state, "forgotten")
        if gone + len(examples) >= samples:
            raise Refused(f"Nobody of the {samples} samples would be left.", "Delete the model instead.")

        origin = state.tensors["origin"]
        after = _unpack("now", state).without(_points(examples.inputs, state.tensors["axes"]), examples.targets)
        forgetting, remembered = MODES[self.mode](self, problem, state, after, examples.inputs)
        retained = state.tensors["retained"] - _gradient_sum(problem, origin, examples)
        gone += len(examples)
        retention = retained / (samples - gone)
        stays, leaves = retention + problem.decay * origin, forgetting / gone
        lengths = float(stays.norm()), float(leaves.norm())
        strength = self.strength if self.ratio is None else self.ratio * lengths[0] / max(lengths[1], TINY)
        norms: dict[str, Json] = {
            "retention_norm": float(retention.norm()),
            "forgetting_norm": lengths[1],
            "ratio": strength * lengths[1] / max(lengths[0], TINY),
        }
        tensors = {"retained": retained, "left": left} | _pack("now", after) | remembered
        return Turn(stays + strength * leaves, gone, tensors, norms)

    def _gamma(self, problem: Problem, state: State, turn: Turn, length: float) -> float:
        """Return the step's length, in units of the weights; ``length`` is ``reach``, or the divisor."""
        norm = _norm(problem, state.tensors["origin"])
        return STEPS[self.step](length, self.rounds, norm, turn.gone / _count(state, "samples"))

    def log_q(self, state: State, after: Moments, inputs: Tensor) -> Tensor:
        """Return log q_t(x), (k, C) float64, cut to [-cut, cut]; 0 for a class never seen, -cut for an emptied one."""
        points = _points(inputs, state.tensors["axes"])
        before = _unpack("before", state)
        ridge = float(state.facts["ridge"])  # type: ignore[arg-type]
        ratio = after.log_joint(points, self.shrinkage, ridge) - before.log_joint(points, self.shrinkage, ridge)
        ratio = torch.where(before.counts == 0, 0.0, ratio)
        return ratio.clamp(-self.cut, self.cut)

    def _classes(self, problem: Problem, origin: Tensor, examples: Examples) -> int:
        targets = examples.targets
        if targets.is_floating_point() or targets.ndim != 1:
            raise Refused("SAFE needs one class per sample; these targets are not class indices.", OTHERS)
        outputs = problem.outputs(origin, examples.inputs[:1])
        classes = 2 if outputs.shape[1] == 1 else int(outputs.shape[1])
        if int(targets.min()) < 0 or int(targets.max()) >= classes:
            raise Refused(f"A target lies outside the model's {classes} classes.", OTHERS)
        return classes

    def _axes(self, inputs: Tensor) -> Tensor:
        """Return (D, p) float64 with orthonormal columns; p = D is the identity, without loss."""
        width = inputs[0].numel()
        if width <= self.features:
            return torch.eye(width, dtype=torch.float64, device=inputs.device)
        generator = torch.Generator().manual_seed(self.seed)
        draw = torch.randn(width, self.features, dtype=torch.float64, generator=generator)
        axes: Tensor = torch.linalg.qr(draw).Q
        return axes.contiguous().to(inputs.device)


def _mean_loss(problem: Problem, w: Tensor, samples: Examples) -> float:
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(samples), CHUNK):
            part = slice(start, start + CHUNK)
            total += float(problem.sample_losses(w, samples.inputs[part], samples.targets[part]).double().sum())
    return total / len(samples)


def _retrained(problem: Problem, examples: Examples, learned: Learned, without: ForgetSet) -> Tensor | None:
    """Return the weights of a training without these people; None: nothing to retrain, or the training diverges."""
    retrain = retraining(problem, examples, learned, problem.dtype)
    if retrain is None:
        return None
    try:
        return retrain(without.positions)
    except RecipeError:
        return None


def _share_of_rise(before: float, after: float, retrained: float) -> float:
    """Return how far a loss rose from ``before``, as a share of its rise by a retraining.

    Where the retraining does not raise it: 0 if nothing else did either, else infinity.
    """
    if retrained <= before:
        return 0.0 if after <= before else math.inf
    return (after - before) / (retrained - before)


def _norm(problem: Problem, w: Tensor) -> float:
    """Return the norm of the trained parameters, without the buffers behind them."""
    return float(w[: problem.trained].norm())


def _step(origin: Tensor, direction: Tensor, gamma: float) -> Tensor:
    length = float(direction.norm())
    if not math.isfinite(length):
        raise Refused("The direction to forget along is not finite.", OTHERS)
    return origin if length == 0 else origin - (gamma / length) * direction


def _perturbed(w: Tensor, spread: float, trained: int, generator: torch.Generator) -> Tensor:
    """Return w - b, b (d,) normal with this spread in the trained parameters, 0 in the buffers behind them.

    w itself, without a draw, where the spread is 0.
    """
    if spread == 0.0:
        return w
    draw = torch.randn(trained, generator=generator, dtype=w.dtype, device=generator.device)
    return torch.cat([w[:trained] - spread * draw.to(w.device), w[trained:]])


def _samples_of(forget: ForgetSet) -> Examples:
    if forget.examples is None:
        raise Refused("SAFE needs the forgotten samples, and none were given.", "Hand over their samples.")
    if tuple(forget.examples.positions.tolist()) != tuple(forget.positions):
        raise Refused("The forgotten samples are not those of the forget set.", "Hand over exactly its samples.")
    return forget.examples


def _strike(left: Tensor, positions: Tensor) -> Tensor:
    known = (positions >= 0) & (positions < len(left))
    if not bool(known.all()) or not bool(left[positions].all()):
        raise Refused("A sample was forgotten before, or was never trained on.", "Forget each sample once.")
    struck = left.clone()
    struck[positions] = 0
    return struck


def _refuse_single(moments: Moments) -> None:
    single = (moments.counts == 1).nonzero().flatten().tolist()
    if single:
        raise Refused(f"Class {single[0]} has a single sample: its Gaussian would be that sample.", OTHERS)


def _points(inputs: Tensor, axes: Tensor) -> Tensor:
    points: Tensor = inputs.flatten(1).to(axes.dtype) @ axes
    return points


def _gradient_sum(problem: Problem, w: Tensor, examples: Examples, progress: Progress = silent) -> Tensor:
    """Return grad l(w), summed over the samples, (d,), without weight decay."""
    total = torch.zeros_like(w)
    for start in range(0, len(examples), CHUNK):
        x, y = examples.inputs[start : start + CHUNK], examples.targets[start : start + CHUNK]
        total += len(x) * problem.gradient(w, x, y)
        progress((start + len(x)) / len(examples))
    return total


def _pack(name: str, moments: Moments) -> dict[str, Tensor]:
    parts = {"counts": moments.counts, "means": moments.means, "covariances": moments.covariances}
    # safetensors stores no two tensors that share memory, and at preparation before and now are the same
    return {f"{name}.{part}": value.clone() for part, value in parts.items()}


def _unpack(name: str, state: State) -> Moments:
    return Moments(*(state.tensors[f"{name}.{part}"] for part in ("counts", "means", "covariances")))


def _count(state: State, name: str) -> int:
    return int(state.facts[name])  # type: ignore[arg-type]


METHOD = Safe
