"""What the tests' recipes read when they run: data that may change, and something that happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import torch

HAPPENINGS: list[Callable[[], None]] = []
"""each is called once, the next time that a recipe runs"""
DROPPED: set[str] = set()
"""ids of samples that the recipe does not give any more"""
SCALE: dict[str, float] = {}
"""sample id -> factor on its inputs"""
JOINED: set[str] = set()
"""people who came since"""
WEIGHT: dict[str, float] = {}
"""sample id -> another weight than its own"""


def happen() -> None:
    while HAPPENINGS:
        HAPPENINGS.pop(0)()


def reset() -> None:
    HAPPENINGS.clear()
    DROPPED.clear()
    SCALE.clear()
    WEIGHT.clear()
    JOINED.clear()


def people(count: int = 12, each: int = 3) -> tuple[list[str], list[str], torch.Tensor, torch.Tensor]:
    """Ids, subjects, inputs (n, 4) and targets (n,) of two classes."""
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(count * each, 4, generator=random)
    targets = (inputs[:, 0] + 0.3 * torch.randn(count * each, generator=random) > 0).long()
    ids = [f"s{index}" for index in range(count * each)]
    inputs = inputs * torch.tensor([SCALE.get(name, 1.0) for name in ids]).unsqueeze(1)
    left = [index for index, name in enumerate(ids) if name not in DROPPED]
    return [ids[i] for i in left], [f"p{i // each}" for i in left], inputs[left], targets[left]
