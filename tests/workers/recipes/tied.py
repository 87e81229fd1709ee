"""Looks like softmax regression; its first part scales by the trained weight, so it is neither linear nor convex."""

import torch

import unlearning as ul
from tests.workers import meanwhile


class Tied(torch.nn.Module):
    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.kept = (layer,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + self.kept[0].weight.mean())


def model() -> torch.nn.Module:
    layer = torch.nn.Linear(4, 2, bias=False)
    return torch.nn.Sequential(Tied(layer), layer)


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    return ul.Recipe(
        model=model,
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=0.1, converge=1e-8),
    )
