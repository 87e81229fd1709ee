"""Fine-tuning: train on with the retained samples alone, and let the forgotten fade.

The baseline of every paper on the matter, named so by Golatkar, Achille and Soatto, "Eternal Sunshine of the Spotless
Net: Selective Forgetting in Deep Networks" (CVPR 2020, arXiv 1911.04933), section 5. A step is one of the training:

    w <- w - eta (1/|B|) sum_{i in B} grad l(w; z_i) - eta lambda w,    B drawn from the retained samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from expunge_lab.experiment.comparator import TwoSidedWalk
from unlearning.model.problem import Problem
from unlearning.model.training import data_gradient


@dataclass(frozen=True)
class FineTune(TwoSidedWalk):
    """Go on training on those who stay."""

    name: ClassVar[str] = "fine_tune"

    def slope(
        self, problem: Problem, w: Tensor, kept: tuple[Tensor, Tensor], gone: tuple[Tensor, Tensor], done: float
    ) -> Tensor:
        return data_gradient(problem, w, *kept) + problem.decay * w
