"""Looks like softmax regression; its first part scales by the trained weight, so it is neither linear nor convex."""

import people
import torch

import unlearning as ul


class Tied(torch.nn.Module):
    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.kept = (layer,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + self.kept[0].weight.mean())


def model() -> torch.nn.Module:
    layer = torch.nn.Linear(4, 2, bias=False)
    return torch.nn.Sequential(Tied(layer), layer)


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=model,
        samples=people.samples(rows),
        holdout=people.strangers(),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=0.1, converge=1e-8),
    )
