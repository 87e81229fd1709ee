"""Whether a method changes the losses of the forgotten as retraining does: two correlations.

HF, figure 2 ("Efficient Online Unlearning via Hessian-Free Recollection of Individual Data Statistics", arXiv
2404.01712), with Pearson's and Spearman's coefficients. 1: every loss moves as retraining moves it. Doing nothing
changes no loss, so it has none.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pearson(one: Tensor, other: Tensor) -> float | None:
    """Return the correlation of two series (n,); None where one does not vary or there are fewer than 2 entries."""
    if len(one) < 2:
        return None
    first, second = one.double() - one.double().mean(), other.double() - other.double().mean()
    lengths = float(first.norm()) * float(second.norm())
    return float(first @ second) / lengths if lengths > 0.0 else None


def spearman(one: Tensor, other: Tensor) -> float | None:
    """Return the correlation of the ranks of two series (n,), ties at their mean rank; None as ``pearson``."""
    return pearson(ranks(one), ranks(other))


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each entry (n,) from 1, float64; equal entries share their mean rank."""
    order = torch.sort(values.double()).values
    first = torch.searchsorted(order, values.double(), right=False)
    last = torch.searchsorted(order, values.double(), right=True)
    return (first + last + 1).double() / 2
