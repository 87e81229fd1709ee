"""Mini-Unlearning: the last k steps of the training taken again without the forgotten, to first order.

Source: Huang et al., "Machine Unlearning with Minimal Gradient Dependence for High Unlearning Ratios"
(arXiv 2406.16986). With eta the step size, B the size of a batch and dB the number of forgotten samples in it, a step
of the training (eq. 2) and the same step without the forgotten (eq. 3) are::

    w  <- w  - eta/B      sum_{batch} grad l(w)
    w' <- w' - eta/(B-dB) sum_{kept}  grad l(w')

Their difference, to first order in dw = w' - w (eq. 4), is the recursion::

    dw <- (I - eta/(B-dB) sum_{kept} Hess l(w)) dw
          + eta/(B-dB) sum_{forgotten} grad l(w) - eta dB/(B (B-dB)) sum_{batch} grad l(w)

run over the last k steps from dw = 0. The signs follow from eqs. 2 to 4; the paper's eqs. 6 and 7 disagree with each
other. On a quadratic with k = T it is exact.

Deviations, each with its reason:

* The two gradient terms together equal ``(w - eta * mean gradient of the kept) - w_next``: where the step without the
  forgotten arrives, less where the training arrived. That is what is computed. It needs no forgotten sample, now or at
  a later update, so they can be destroyed at once, and it is zero to the last bit where a batch lost no sample. The
  state keeps the last k + 1 weight vectors for it (the paper keeps gradients).
* Weight decay belongs to every step: with l the data loss plus (lambda/2)||w||^2 in all three sums. Where the training
  clips, the step without the forgotten is clipped by its own norm, decay inside, as ``training.py`` does, and dw passes
  through that step's derivative. The paper has neither.
* A training with ``converge`` has no last steps to speak of. Its tail is k steps of full-batch descent at the
  minimiser, at the training's first learning rate: there the training does not move, and the step without the
  forgotten does not.
* Updates do not build on one another. Each is computed from the original k steps and all retained samples,
  so the order and the grouping of requests do not matter.
* A batch that lost all its samples steps by weight decay alone, as in ``training.train`` (the paper divides by zero).
* Products are exact by default. ``products="secant"`` is the paper's L-BFGS with m = ``pairs``; its pairs come from
  one batch, because the difference between two batches' gradients is mostly sampling noise.
* Registration measures on a few sets of people, really retrained without them, whether k steps are enough: where the
  training does not contract, k of T steps recover little more than k/T of the way.
* The paper assumes a contraction. Where it holds, ||dw|| is at most the sum of the norms that the steps contribute; a
  update that exceeds that sum ``amplification`` times is refused.
* The paper's algorithm 3 takes the k steps in parallel: on k devices, each forms its step's whole Hessian by p = d
  products, and the k matrices are multiplied out. The weights are the same (``tests/unlearning/methods/test_mini.py``).
  Here it is one chain of k products, since each needs the shift that the step before it leaves: k products in place
  of k d on a machine that serves alone. The k gradients would be independent, but come with the products, and batched
  they have not the bits of the training's own: a batch that lost nobody would no longer contribute exactly nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from unlearning.methods.mini.secant import secant_product
from unlearning.model.curvature import clipped_map, gradient_and_product
from unlearning.model.descent.plan import REFERENCES, denominator_of
from unlearning.model.method import OF_POLICY, Method, require_followed
from unlearning.model.problem import Problem
from unlearning.model.training import (
    Batch,
    batch_of,
    replay,
    scale_of,
    step_gradient,
    steps_per_epoch,
)
from unlearning.model.training import (
    retrace as retrace,
)
from unlearning.model.training import (
    train as train,
)
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
    Trajectory,
    retained,
    silent,
)

PRODUCTS = ("exact", "secant")
TAIL_LIMIT = 2**28
"""numbers of the tail where the hyperparameters leave its length open (1 GiB in float32)"""
STANDSTILL = 100
NOBODY = -1
"""fills the places of a batch that no sample takes"""


@dataclass(frozen=True)
class Mini(Method):
    """The correction of the last ``steps`` steps, added to the trained weights.

    Args:
        steps: k; a shorter training is taken whole. None: half the training's steps (100 where it converges), or as
            many as ``TAIL_LIMIT`` numbers hold.
        epochs: k counted in passes over the data, as the paper counts it (its k is 10), in place of ``steps``. Where
            the training converges a pass is one full-batch step.
        products: "exact" or "secant".
        pairs: m, how many differences a secant product looks back on.
        reference: the retraining that is approximated: "renormalised" (the paper's) or "fixed-denominator".
        amplification: an update is refused when ||dw|| exceeds this many times what its steps contribute.

    Raises:
        Refused: a value outside its range.
    """

    name: ClassVar[str] = "mini"
    near: ClassVar[bool] = True
    secret_state: ClassVar[tuple[str, ...]] = (
        "The weights of the training's last steps were trained on the people who were deleted.",
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TRAJECTORY, Need.RETAINED})

    steps: int | None = None
    epochs: int | None = None
    products: str = "exact"
    pairs: int = 2
    reference: str = field(default="renormalised", metadata=OF_POLICY)
    amplification: float = 2.0

    def __post_init__(self) -> None:
        _require(self.steps is None or self.steps >= 1, "steps", self.steps, "at least 1, or None")
        _require(self.epochs is None or self.epochs >= 1, "epochs", self.epochs, "at least 1, or None")
        _require(self.epochs is None or self.steps is None, "steps", self.steps, "None where epochs is given")
        _require(self.products in PRODUCTS, "products", self.products, f"one of {', '.join(PRODUCTS)}")
        _require(self.pairs >= 1, "pairs", self.pairs, "at least 1")
        _require(self.reference in REFERENCES, "reference", self.reference, f"one of {', '.join(REFERENCES)}")
        _require(self.amplification >= 1.0, "amplification", self.amplification, "at least 1")

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Keep ``tail`` (k+1, d) weights, ``batches`` (k, B) positions, ``sizes``, ``rates`` and ``scales`` (k,).

        ``facts["report"]`` holds ``steps`` (k), ``trajectory_steps`` and ``reference``.

        Raises:
            Refused: no trajectory (and no ``converge``), one that does not end in the weights, samples clipped one by
                one.
        """
        require_followed(self, problem.recipe)
        tail = self._tail(problem, examples, learned, lambda share: progress(0.3 * share))
        report: dict[str, Json] = {"steps": len(tail["rates"]), "trajectory_steps": len(learned.trajectory or ())}
        report["reference"] = self.reference
        progress(1.0)
        return State(learned.weights, tail, {"report": report})

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Add dw of all samples that left to the trained weights; one gradient and one product a step.

        Raises:
            Refused: no sample is retained, or the recursion does not contract.
        """
        if not forget:
            return Forgotten(state)
        left = retained(forget, retain)
        work = problem.cast(state.weights.dtype)
        shift = torch.zeros_like(state.weights)
        contributed = 0.0
        for step in _steps(state.tensors, left, self.reference):
            source, shift = self._advance(work, step, shift)
            contributed += float(source.norm())
        self._require_contraction(float(shift.norm()), contributed)
        tensors = {**state.tensors, "batches": _only(state.tensors["batches"].cpu(), left)}
        evidence: dict[str, Json] = {"correction_norm": float(shift.norm()), "contributed_norm": contributed}
        return Forgotten(State(state.tensors["tail"][-1].to(shift.device) + shift, tensors, state.facts), evidence)

    def _tail(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress) -> dict[str, Tensor]:
        most = max(1, TAIL_LIMIT // problem.dimension - 1)
        if problem.training.converge is not None:
            asked = self.steps or self.epochs or min(STANDSTILL, most)
            return _standstill(problem, examples, learned.weights, asked)
        trajectory = _followed(problem, learned)
        total = len(trajectory)
        passes = (self.epochs or 0) * steps_per_epoch(problem, len(examples))
        first = total - min(self.steps or passes or min(max(1, total // 2), most), total)
        weights = []
        for step, w, _ in replay(problem, examples, trajectory, first):
            progress((step - first) / (total - first))
            weights.append(w)
        return _recorded(trajectory, first, torch.stack([*weights, learned.weights]))

    def _advance(self, problem: Problem, step: _Step, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Return what this step contributes, and dw (d,) after it."""
        gradient, bent = self._linearised(problem, step, shift)
        clips = problem.training.clip is not None
        scale = scale_of(problem, gradient) if clips else step.scale
        source = (step.history[-1] - (step.rate * scale) * gradient) - step.arrived
        turned = clipped_map(gradient, scale, bent.unsqueeze(0))[0] if clips else scale * bent
        return source, shift - step.rate * turned + source

    def _linearised(self, problem: Problem, step: _Step, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step's gradient g (d,) and its derivative along v (d,), both with weight decay."""
        w, batch = step.history[-1], step.batch
        if len(batch) == 0 or not bool(v.any()):
            # Computed as the training does: a batch that lost nobody contributes exactly nothing.
            return step_gradient(problem, w, batch), problem.decay * v
        gradient, product = self._products(problem, step, v)
        share = len(batch) / batch.denominator
        return share * gradient + problem.decay * w, share * product + problem.decay * v

    def _products(self, problem: Problem, step: _Step, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean data gradient (d,) of those retained in the batch, and its Hessian's product with v (d,)."""
        x, y = step.batch.inputs, step.batch.targets
        if self.products == "secant":
            window = step.history[-self.pairs - 1 :]
            gradients = torch.stack([problem.gradient(w, x, y) for w in window])
            product = secant_product(window.diff(dim=0), gradients.diff(dim=0), v)
            if product is not None:
                return gradients[-1], product
        return gradient_and_product(problem, step.history[-1], x, y, v)

    def _require_contraction(self, shift: float, contributed: float) -> None:
        if shift <= self.amplification * contributed:  # false for NaN too
            return
        raise Refused(
            f"The recursion does not contract: the correction's norm is {shift:.3g}, where its steps contribute "
            f"{contributed:.3g} together.",
            "Use fewer steps, train with a lower learning rate, or choose newton, rewind or retrain.",
        )


METHOD = Mini


@dataclass(frozen=True)
class _Step:
    """One step of the training, with the retained samples of its batch.

    ``history`` (j+1, d) is the weights up to and including the ones before this step, ``arrived`` (d,) those after.
    """

    history: Tensor
    arrived: Tensor
    batch: Batch
    rate: float
    scale: float


def _steps(tensors: Mapping[str, Tensor], retain: Examples, reference: str) -> Iterator[_Step]:
    tail, batches = tensors["tail"].to(retain.inputs.device), tensors["batches"].cpu()
    places, batch = torch.empty(0, dtype=torch.int64), None
    for index, (row, planned) in enumerate(zip(batches, tensors["sizes"].tolist(), strict=True)):
        positions = row[row != NOBODY]
        if batch is None or not torch.equal(positions, places):
            present = batch_of(retain, positions, planned)
            denominator = max(1, denominator_of(reference, planned, len(present)))
            places, batch = positions, Batch(present.inputs, present.targets, denominator)
        yield _Step(
            tail[: index + 1],
            tail[index + 1],
            batch,
            float(tensors["rates"][index]),
            float(tensors["scales"][index]),
        )


def _followed(problem: Problem, learned: Learned) -> Trajectory:
    """Return the trajectory. Raises Refused where the recursion cannot follow it."""
    trajectory = learned.trajectory
    others = "Choose newton, rewind, safe or retrain."
    if trajectory is None or len(trajectory) == 0:
        raise Refused("mini needs the training's trajectory, and there is none.", f"Train here or record it. {others}")
    if problem.training.sample_clip is not None:
        raise Refused(
            "mini cannot follow a training that clips every sample (sample_clip).", "Choose rewind or retrain."
        )
    end = trajectory.checkpoints[-1]
    if not torch.equal(end.to(learned.weights), learned.weights):
        raise Refused("The weights are not those that the trajectory ends in.", "Give the weights it ended in.")
    return trajectory


def _standstill(problem: Problem, examples: Examples, weights: Tensor, steps: int) -> dict[str, Tensor]:
    """Return the tail of a training that has converged: full-batch steps that do not move."""
    everyone = examples.positions.cpu()
    return {
        "tail": weights.expand(steps + 1, -1).clone(),
        "batches": everyone.expand(steps, -1).clone(),
        "sizes": torch.full((steps,), len(everyone), dtype=torch.int64),
        "rates": torch.full((steps,), problem.training.learning_rate, dtype=torch.float64),
        "scales": torch.ones(steps, dtype=torch.float64),
    }


def _recorded(trajectory: Trajectory, first: int, tail: Tensor) -> dict[str, Tensor]:
    batches = trajectory.batches[first:]
    return {
        "tail": tail,
        "batches": torch.nn.utils.rnn.pad_sequence(list(batches), batch_first=True, padding_value=NOBODY),
        "sizes": torch.tensor([len(batch) for batch in batches], dtype=torch.int64),
        "rates": torch.tensor(trajectory.rates[first:], dtype=torch.float64),
        "scales": torch.tensor(trajectory.scales[first:], dtype=torch.float64),
    }


def _only(batches: Tensor, retain: Examples) -> Tensor:
    """Keep batch membership of the retained alone: a forgotten sample leaves no position behind."""
    return torch.where(torch.isin(batches, retain.positions.cpu()), batches, NOBODY)


def _require(holds: bool, name: str, value: object, must: str) -> None:
    if not holds:
        raise Refused(f"mini's {name} is {value!r}.", f"It must be {must}.")
