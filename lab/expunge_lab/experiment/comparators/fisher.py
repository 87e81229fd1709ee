"""Fisher forgetting: noise on each weight, the stronger the less the retained samples need that weight.

Golatkar, Achille and Soatto, "Eternal Sunshine of the Spotless Net: Selective Forgetting in Deep Networks" (CVPR 2020,
arXiv 1911.04933), the Fisher form of their scrubbing:

    S(w) = w + (lambda sigma_h^2)^(1/4) F^(-1/4) n,    n ~ N(0, I),

with F the diagonal of the Fisher information on the retained samples. The power follows from what they minimise: noise
of variance v_j costs F_j v_j in the loss and leaves lambda sigma_h^2 / v_j of information, so v_j^2 is
lambda sigma_h^2 / F_j. F is computed as it is defined, over the labels that the model itself expects:
F_j = mean_x sum_y p(y | x; w) (d log p(y | x; w) / d w_j)^2.

Their code (github.com/AdityaGolatkar/SelectiveForgetting) takes F in the same way and then does otherwise: the
variance is alpha / F_j, at most 1000 alpha (100 alpha in the last layer), averaged over a neuron's inputs and ten times
as large for biases and the last layer. Papers that state an alpha, CNS's among them, mean that code's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge_lab.experiment.comparator import Comparator, require_classes
from unlearning.model.problem import Problem
from unlearning.types import Examples

LEAST = 1e-8
"""of the information of a weight: one that no output depends on would get noise without end"""


@dataclass(frozen=True)
class Fisher(Comparator):
    """Drown what those who stay do not need.

    Args:
        strength: lambda sigma_h^2.
    """

    name: ClassVar[str] = "fisher"
    strength: float = 1e-8

    def __post_init__(self) -> None:
        if not self.strength >= 0.0:
            raise ValueError(f"strength is {self.strength}. It must be 0 or more.")

    def require_defined(self, problem: Problem) -> None:
        require_classes(self.name, problem)

    def unlearn(
        self, problem: Problem, w: Tensor, forget: Examples, retain: Examples, generator: torch.Generator
    ) -> Tensor:
        noise = torch.randn(len(w), dtype=torch.float64, generator=generator).to(w)
        needed = information(problem, w, retain.inputs).clamp(min=LEAST)
        result: Tensor = w + math.pow(self.strength, 0.25) * needed.pow(-0.25) * noise
        return result


def information(problem: Problem, w: Tensor, x: Tensor) -> Tensor:
    """Return the diagonal (d,) of the Fisher information of a classifier at w (d,) on inputs x (n, ...)."""
    with torch.no_grad():
        chances = problem.outputs(w, x).softmax(dim=1)
    total = torch.zeros_like(w)
    rows = max(1, 2**24 // problem.dimension)
    for part, weights in zip(torch.split(x, rows), torch.split(chances, rows), strict=True):
        for label in range(chances.shape[1]):
            named = torch.full((len(part),), label, device=x.device)
            total += weights[:, label] @ problem.sample_gradients(w, part, named).square()
    return total / len(x)
