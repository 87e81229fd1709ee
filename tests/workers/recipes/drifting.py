"""A dataset that gives other values each time an item is read, from a state of its own: a fresh one begins alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

import unlearning as ul
from tests.unlearning.recipes import softmax


class Drifting:
    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets, self.times = inputs, targets, Counter[int]()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.times[index] += 1
        return self.inputs[index] + torch.tensor(3.0 * (self.times[index] > 1)), self.targets[index]


def recipe() -> ul.Recipe:
    plain = softmax()
    dataset = Drifting(*plain.samples.tensors())
    names = (list(plain.samples.ids), list(plain.samples.people))
    return replace(plain, samples=ul.Samples.from_dataset(dataset, ids=names[0], people=names[1], workers=0))
