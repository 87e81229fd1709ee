"""What the recipes here make of rows of people, ``a`` to ``d`` and a class; and ten strangers to measure a model by."""

import torch
from torch import Tensor

import unlearning as ul


def inputs(rows: ul.Rows) -> Tensor:
    """The four numbers of each row, (n, 4)."""
    return rows.tensor("a", "b", "c", "d").float()


def samples(rows: ul.Rows) -> ul.Samples:
    """The rows as samples of two classes."""
    return rows.samples(inputs(rows), rows["label"], at=rows["__row"])


def strangers() -> tuple[Tensor, Tensor]:
    """Inputs (10, 4) and classes (10,), drawn as the people were; no table has them."""
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(2))
    return x, (x[:, 0] > 0).long()
