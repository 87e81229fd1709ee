"""The tables of the drills' recipes: many people with one row each."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor

FEW = 500
"""so many of the crowd are those of ``few``, ``unhurried`` and ``greedy``"""


def drawn(count: int) -> tuple[Tensor, Tensor]:
    """Return four numbers (count, 4) and a class (count,) for each person."""
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 4, generator=random)
    return inputs, (inputs[:, 0] + 0.3 * torch.randn(count, generator=random) > 0).long()


def copy_recipes(recipes: Path, people: int) -> Path:
    """Copy the drills' recipes to this folder and write their tables; ``crowd`` has so many people."""
    shutil.copytree(Path(__file__).parent / "recipes", recipes)
    _write(recipes / "crowd.csv", people)
    _write(recipes / "few.csv", FEW)
    write_greedy(recipes, "modest")
    return recipes


def write_greedy(recipes: Path, way: str) -> None:
    """Write the table of ``greedy``; ``way`` says how it takes more memory than there is: see the recipe."""
    _write(recipes / "greedy.csv", FEW, way=way)


def _write(table: Path, count: int, **constant: str) -> None:
    inputs, labels = drawn(count)
    lines = [",".join(["id", "person", "a", "b", "c", "d", "label", *constant])]
    for number, (row, label) in enumerate(zip(inputs.tolist(), labels.tolist(), strict=True)):
        values = [f"crowd-{number}", f"crowd-person-{number}", *map(repr, row), str(label), *constant.values()]
        lines.append(",".join(values))
    table.write_text("\n".join(lines) + "\n")
