"""l1-sparse unlearning: fine-tune on the retained samples with a penalty on the absolute weights.

Jia, Liu, Ram, Yao, Liu, Liu, Sharma and Liu, "Model Sparsity Can Simplify Machine Unlearning" (NeurIPS 2023, arXiv
2304.04934), their sparsity-aware unlearning:

    w_u = argmin_w L(w; D_r) + gamma ||w||_1,    started at the trained weights.

They find a weight that falls along the training best. Here it falls in a straight line from gamma to 0, step by step;
their code (github.com/OPTML-Group/Unlearn-Sparse, ``FT_l1``) does the same epoch by epoch. They prune the network
first, which is another training and is left out here. A step follows the penalty's subgradient, sign(w), with 0
at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from expunge_lab.experiment.comparator import TwoSidedWalk
from unlearning.model.problem import Problem
from unlearning.model.training import data_gradient


@dataclass(frozen=True)
class L1Sparse(TwoSidedWalk):
    """Fine-tune towards few weights that are not 0.

    Args:
        gamma: the penalty's weight at the first step.
    """

    name: ClassVar[str] = "l1_sparse"
    gamma: float = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gamma >= 0.0:
            raise ValueError(f"gamma is {self.gamma}. It must be 0 or more.")

    def slope(
        self, problem: Problem, w: Tensor, kept: tuple[Tensor, Tensor], gone: tuple[Tensor, Tensor], done: float
    ) -> Tensor:
        penalty = self.gamma * (1.0 - done) * w.sign()
        return data_gradient(problem, w, *kept) + problem.decay * w + penalty
