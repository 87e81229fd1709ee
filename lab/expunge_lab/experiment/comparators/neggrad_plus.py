"""NegGrad+: descend on the retained samples while climbing on the forgotten ones.

Kurmanji, Triantafillou, Hayes and Triantafillou, "Towards Unbounded Machine Unlearning" (NeurIPS 2023, arXiv
2302.09880), where it is the stronger form of the negative-gradient baseline:

    L(w) = beta (1/|D_r|) sum_{D_r} l(f(x; w), y) - (1 - beta) (1/|D_f|) sum_{D_f} l(f(x; w), y).

The first term has the training's weight decay here. The second has no lower bound: with a small beta the walk runs
away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from expunge_lab.experiment.comparator import TwoSidedWalk
from unlearning.model.problem import Problem
from unlearning.model.training import data_gradient


@dataclass(frozen=True)
class NegGradPlus(TwoSidedWalk):
    """Descend on those who stay, climb on those who leave.

    Args:
        beta: the weight of the retained samples, in [0, 1]. The paper has 0.95 for its small data sets.
    """

    name: ClassVar[str] = "neggrad_plus"
    beta: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta is {self.beta}. It must lie between 0 and 1.")

    def slope(
        self, problem: Problem, w: Tensor, kept: tuple[Tensor, Tensor], gone: tuple[Tensor, Tensor], done: float
    ) -> Tensor:
        down = data_gradient(problem, w, *kept) + problem.decay * w
        return self.beta * down - (1.0 - self.beta) * data_gradient(problem, w, *gone)
