"""Several models that answer as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unlearning.model.problem import build
from unlearning.recipe import Recipe, SampleLoss


class Ensemble(nn.Module):
    """Average the answers of ``members``.

    Args:
        members: modules with the same outputs.
        loss: what they were trained with. ``cross_entropy`` averages the probabilities and returns their logarithms;
            ``binary_logistic`` averages the probabilities and returns the logit; any other averages the outputs.

    To serve a published version: ``model = Ensemble([build() for _ in range(S)], loss)``, then
    ``model.load_state_dict(safetensors.torch.load_file(path))``.
    """

    def __init__(self, members: Iterable[nn.Module], loss: str | SampleLoss) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.loss = loss if isinstance(loss, str) else "custom"

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([member(x) for member in self.members])
        match self.loss:
            case "cross_entropy":
                return outputs.log_softmax(dim=-1).logsumexp(dim=0) - torch.tensor(len(outputs)).log().to(outputs)
            case "binary_logistic":
                positive, negative = nn.functional.logsigmoid(outputs), nn.functional.logsigmoid(-outputs)
                return positive.logsumexp(dim=0) - negative.logsumexp(dim=0)
        return outputs.mean(dim=0)


@dataclass(frozen=True)
class EnsembleOf:
    """Build an ensemble of ``count`` models, each as the recipe ``member`` builds it under its own seed."""

    member: Recipe
    count: int

    def __call__(self) -> Ensemble:
        seed = self.member.training.seed
        return Ensemble([build(self.member, seed) for _ in range(self.count)], self.member.loss)
