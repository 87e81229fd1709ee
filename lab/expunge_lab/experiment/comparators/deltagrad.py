"""DeltaGrad: repeat the training without the forgotten, with most gradients replaced by what the cache says.

Wu, Dobriban and Davidson, "DeltaGrad: Rapid retraining of machine learning models" (ICML 2020, arXiv 2006.14755),
algorithm 1 and its form for mini-batches. The training's weights w_t and batch gradients G_t are cached. With B samples
in the batch, R those to forget among them and w the weights of the repeated training,

    w <- w - (eta_t/(B - |R|)) (B (G_t + H_t (w - w_t)) - sum_{i in R} grad l(w; z_i)) - eta_t lambda w.

In the authors' code the decay is part of G_t and of the pairs, and so is approximated with the rest; it is known, and
is kept apart here. H_t is the BFGS matrix of the last ``pairs`` differences. In the first ``burn_in`` steps and in
every ``period``-th step after them, B (G_t + H_t (w - w_t)) is the true batch gradient, which gives a new pair. A
step where no pair shows positive curvature is a true one as well. After an update the cache holds the repeated
training, as in their online algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge_lab.experiment.comparator import gone_of, require_finite
from unlearning.methods.mini.secant import secant_product
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import Batch, batch_of, replay
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Learned,
    Need,
    Progress,
    Refused,
    State,
    Trajectory,
    retained,
    silent,
)

MOST = 2**28
"""numbers that the cache may hold (2 GiB in float64)"""


@dataclass(frozen=True)
class DeltaGrad(Method):
    """Repeat the training with gradients corrected from a cache.

    Args:
        burn_in: steps at the start whose gradients are computed (j0).
        period: one step in so many after that is computed as well (T0); 1: all are, which is retraining.
        pairs: differences that the BFGS matrix has seen (m).
    """

    name: ClassVar[str] = "deltagrad"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TRAJECTORY, Need.RETAINED, Need.FORGOTTEN})
    burn_in: int = 10
    period: int = 5
    pairs: int = 2

    def __post_init__(self) -> None:
        if self.burn_in < 1 or self.period < 1 or self.pairs < 1:
            raise ValueError(f"burn_in, period and pairs are {self.burn_in}, {self.period}, {self.pairs}; least is 1.")

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Keep w_t and G_t of every step. Raises Refused without a plain trajectory, or for too large a cache."""
        trajectory = _followed(problem, learned)
        path, slopes = [], []
        for step, w, batch in replay(problem, examples, trajectory):
            path.append(w)
            slopes.append(problem.gradient(w, batch.inputs, batch.targets))
            progress(step / len(trajectory))
        return State(
            learned.weights,
            {
                "path": torch.stack(path),
                "slopes": torch.stack(slopes),
                "rates": torch.tensor(trajectory.rates, dtype=torch.float64),
                "batches": torch.cat(trajectory.batches),
                "sizes": torch.tensor([len(batch) for batch in trajectory.batches]),
            },
        )

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        if not forget:
            return Forgotten(state)
        kept, gone, cache = retained(forget, retain), gone_of(forget), state.tensors
        w, seen = cache["path"][0], _Pairs(self.pairs)
        path, slopes = [], []
        for step, positions in enumerate(torch.split(cache["batches"], cache["sizes"].tolist())):
            cached = _Cached(
                cache["path"][step],
                cache["slopes"][step],
                batch_of(kept, positions, len(positions)),
                batch_of(gone, positions, len(positions)),
            )
            slope = self._slope(problem, w, step, cached, seen)
            path.append(w)
            slopes.append(slope)
            w = w - float(cache["rates"][step]) * (slope + problem.decay * w)
        require_finite(self.name, w)
        return Forgotten(State(w, _only(cache, kept) | {"path": torch.stack(path), "slopes": torch.stack(slopes)}))

    def _slope(self, problem: Problem, w: Tensor, step: int, cached: _Cached, seen: _Pairs) -> Tensor:
        """Return the mean data gradient (d,) at w of those in the batch who stay, computed or corrected."""
        stay, leave = len(cached.stay), len(cached.leave)
        if stay == 0:
            return torch.zeros_like(w)
        removed = problem.gradient(w, cached.leave.inputs, cached.leave.targets) if leave else torch.zeros_like(w)
        change = None if self._computes(step) else seen.product(w - cached.weights)
        if change is not None:
            return ((stay + leave) * (cached.slope + change) - leave * removed) / stay
        found = problem.gradient(w, cached.stay.inputs, cached.stay.targets)
        whole = (stay * found + leave * removed) / (stay + leave)
        seen.add(w - cached.weights, whole - cached.slope)
        return found

    def _computes(self, step: int) -> bool:
        return step < self.burn_in or (step - self.burn_in) % self.period == 0


@dataclass(frozen=True)
class _Cached:
    """One step of the cached training: its weights and mean data gradient (d,), and its batch in two parts."""

    weights: Tensor
    slope: Tensor
    stay: Batch
    leave: Batch


class _Pairs:
    """The last differences of weights and of gradients, oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[Tensor, Tensor]] = []

    def add(self, move: Tensor, change: Tensor) -> None:
        """Keep a pair (d,) and (d,), and the oldest no more. Where nothing moved there is nothing to learn."""
        if bool(move.any()):
            self._kept = [*self._kept, (move, change)][-self._most :]

    def product(self, v: Tensor) -> Tensor | None:
        """Return H v (d,); None where no pair shows positive curvature."""
        if not self._kept:
            return None
        moves, changes = zip(*self._kept, strict=True)
        return secant_product(torch.stack(moves), torch.stack(changes), v)


def _only(cache: Mapping[str, Tensor], retain: Examples) -> dict[str, Tensor]:
    """Return the cache with the retained alone in its batches: who was forgotten leaves no position behind."""
    stays = [
        part[torch.isin(part, retain.positions.cpu())]
        for part in torch.split(cache["batches"], cache["sizes"].tolist())
    ]
    return dict(cache) | {"batches": torch.cat(stays), "sizes": torch.tensor([len(part) for part in stays])}


def _followed(problem: Problem, learned: Learned) -> Trajectory:
    """Return the trajectory. Raises Refused where it is missing, clipped or too large, or where it ends elsewhere."""
    trajectory = learned.trajectory
    if trajectory is None or len(trajectory) == 0:
        raise Refused("deltagrad needs the training's trajectory, and there is none.", "Leave it out.")
    if not torch.equal(trajectory.checkpoints[-1].to(learned.weights), learned.weights):
        raise Refused(
            "The training went on after its recorded steps (converge), and deltagrad repeats those alone.",
            "Leave it out.",
        )
    if problem.training.sample_clip is not None or any(scale < 1.0 for scale in trajectory.scales):
        raise Refused("deltagrad cannot correct a gradient that was clipped.", "Leave it out.")
    if 2 * len(trajectory) * problem.dimension > MOST:
        raise Refused(
            f"deltagrad would cache {2 * len(trajectory)} vectors of {problem.dimension} numbers.", "Leave it out."
        )
    return trajectory
