"""Small recipes that the tests of the maths share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import unlearning as ul


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal float64 numbers from a seed of their own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def recipe(
    model: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    loss: Any = "cross_entropy",
    people: int = 7,
    weights: Any = None,
    trajectory: Any = None,
    **training: Any,
) -> ul.Recipe:
    """Samples dealt to ``people`` in turn; trained for 4 epochs unless told otherwise."""
    ids = [f"s{index}" for index in range(len(x))]
    subjects = [f"p{index % people}" for index in range(len(x))]
    settings = {"epochs": 4, "learning_rate": 0.2, **training}
    return ul.Recipe(
        model=model,
        samples=ul.Samples(ids, subjects, x, y),
        holdout=(x, y),
        loss=loss,
        training=ul.Training(**settings),
        weights=weights,
        trajectory=trajectory,
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def network(**training: Any) -> ul.Recipe:
    """40 samples of 7 people, a tanh network with 39 weights, three classes, batches of 16."""
    x = draw(40, 5)
    y = (x[:, :3] + 0.5 * draw(40, 3, seed=1)).argmax(dim=1)
    return recipe(perceptron, x, y, **{"batch_size": 16, "weight_decay": 1e-2, **training})


def softmax(count: int = 60, bias: bool = False, **training: Any) -> ul.Recipe:
    """Softmax regression on 6 features, the last one constant."""
    x = draw(count, 6)
    x[:, -1] = 1.0
    y = (x[:, :3] + 0.7 * draw(count, 3, seed=1)).argmax(dim=1)
    settings = {"epochs": 0, "weight_decay": 1e-2, "converge": 1e-10, **training}
    return recipe(lambda: nn.Linear(6, 3, bias=bias), x, y, people=12, **settings)


@dataclass(frozen=True)
class ReadRows:
    """Rows that are not held: they are read by blocks."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def row_bytes(self) -> int:
        return self.inputs[0].nbytes + self.targets[0].nbytes

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            yield self.inputs[part], self.targets[part]
