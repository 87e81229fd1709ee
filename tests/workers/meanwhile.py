"""The people of the tests' tables, and something that happens while a recipe runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from expunge_workers.runtime import build, world_model

HAPPENINGS: list[Callable[[], None]] = []
"""each is called once, the next time that a recipe runs"""


def happen() -> None:
    while HAPPENINGS:
        HAPPENINGS.pop(0)()


def watch_for_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is to happen do so before the next world is made, in the process that asks for it."""

    def happens_first(make_world: Callable[..., Any]) -> Callable[..., Any]:
        def make(*given: Any, **settings: Any) -> Any:
            happen()
            return make_world(*given, **settings)

        return make

    for room in (build, world_model):
        monkeypatch.setattr(room, "make_world", happens_first(room.make_world))


def people(count: int = 12, each: int = 3) -> tuple[list[str], list[str], torch.Tensor, torch.Tensor]:
    """Ids, subjects, inputs (n, 4) and targets (n,) of two classes: what the tables hold."""
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(count * each, 4, generator=random)
    targets = (inputs[:, 0] + 0.3 * torch.randn(count * each, generator=random) > 0).long()
    ids = [f"s{index}" for index in range(count * each)]
    return ids, [f"p{index // each}" for index in range(count * each)], inputs, targets
