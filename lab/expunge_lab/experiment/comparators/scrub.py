"""SCRUB: a student that obeys the trained model on the retained samples and contradicts it on the forgotten ones.

Kurmanji, Triantafillou, Hayes and Triantafillou, "Towards Unbounded Machine Unlearning" (NeurIPS 2023, arXiv
2302.09880), algorithm 1. With w_o the trained weights, p(x; w) the class probabilities and
d(x; w) = KL(p(x; w_o) || p(x; w)), the student minimises

    (alpha/|D_r|) sum_{D_r} d(x; w) + (gamma/|D_r|) sum_{D_r} l(f(x; w), y) - (1/|D_f|) sum_{D_f} d(x; w)

in turns. Each of the first ``max_epochs`` epochs begins with a pass over the forgotten samples that raises d. Then a
pass over the retained samples lowers the first two terms (here with the training's weight decay). Their rewinding
(SCRUB+R), which picks a checkpoint by the error of the forgotten, is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F

from expunge_lab.experiment.comparator import Walk, require_classes
from unlearning.model.problem import Problem
from unlearning.model.training import data_gradient
from unlearning.types import Examples


@dataclass(frozen=True)
class Scrub(Walk):
    """Obey the trained model where people stay, contradict it where they leave.

    Args:
        alpha: the weight of the distance to the trained model's outputs on the retained samples.
        gamma: the weight of the loss on the retained samples.
        max_epochs: how many epochs begin with a pass over the forgotten samples.
    """

    name: ClassVar[str] = "scrub"
    alpha: float = 0.5
    gamma: float = 1.0
    max_epochs: int = 2

    def require_defined(self, problem: Problem) -> None:
        require_classes(self.name, problem)

    def unlearn(
        self, problem: Problem, w: Tensor, forget: Examples, retain: Examples, generator: torch.Generator
    ) -> Tensor:
        teacher = w
        for epoch in range(self.epochs):
            if epoch < self.max_epochs:
                for places in self.batches(forget, 1, generator):
                    w = self.step(problem, w, -disagreement_slope(problem, w, teacher, forget.pick(places)[0]))
            for places in self.batches(retain, 1, generator):
                w = self.step(problem, w, self._kept(problem, w, teacher, retain.pick(places)))
        return w

    def _kept(self, problem: Problem, w: Tensor, teacher: Tensor, kept: tuple[Tensor, Tensor]) -> Tensor:
        loss = self.gamma * data_gradient(problem, w, *kept)
        return self.alpha * disagreement_slope(problem, w, teacher, kept[0]) + loss + problem.decay * w


def disagreement_slope(problem: Problem, w: Tensor, teacher: Tensor, x: Tensor) -> Tensor:
    """Return the gradient (d,) at w of the mean over x of KL(p(x; teacher) || p(x; w))."""
    with torch.no_grad():
        taught = F.softmax(problem.outputs(teacher, x), dim=1)

    def disagreement(u: Tensor) -> Tensor:
        return F.kl_div(F.log_softmax(problem.outputs(u, x), dim=1), taught, reduction="batchmean")

    slope: Tensor = grad(disagreement)(w)
    return slope.detach()
