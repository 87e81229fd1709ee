"""What a holdout is measured by. Greater is better, and 1 is the best, for each named metric."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor) -> float | None:
    """Return the share of correct classes.

    Of one output (n,) or (n, 1) the sign is the class; targets (n,) are classes, or (n, k) shares of them.
    """
    if outputs.dim() == 1 or outputs[0].numel() == 1:
        return float(((outputs.reshape(-1) > 0) == (targets.reshape(-1) > 0)).double().mean())
    classes = targets.argmax(dim=1) if targets.dim() == 2 and targets.shape[1] > 1 else targets.reshape(-1)
    return float((outputs.argmax(dim=1) == classes).double().mean())


def r2(outputs: Tensor, targets: Tensor) -> float | None:
    """Return the coefficient of determination R^2, of all numbers (n, ...) together; 0 where targets do not vary."""
    found, wanted = outputs.double().reshape(-1), targets.double().reshape(-1)
    total = (wanted - wanted.mean()).square().sum()
    return float(1.0 - (found - wanted).square().sum() / total) if float(total) > 0 else 0.0


def auc(outputs: Tensor, targets: Tensor) -> float | None:
    """Return how often a positive sample has a higher score than a negative one; ties count half.

    Scores are one output, or the second of two minus the first. None: the targets (n,) are of one class.
    """
    scores = (outputs.reshape(len(outputs), -1) if outputs.dim() > 1 else outputs.unsqueeze(1)).double()
    score = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]
    positive = targets.reshape(-1) > 0
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return None
    _, place, counts = torch.unique(score, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).double() - (counts - 1).double() / 2.0  # the mean rank of equal scores, from 1 on
    return float((ranks[place][positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def ndcg(outputs: Tensor, targets: Tensor) -> float | None:
    """Return the mean normalised discounted cumulative gain of a ranking of all items, by scores (n, items).

    Targets are the right item of each row (n,), or each item's gain (n, items) of 0 or more; rows without gain do not
    count, and None is for no row with any (Jarvelin and Kekalainen, 2002, with a logarithm to the base 2).
    """
    gains = targets.double() if targets.dim() == 2 else torch.nn.functional.one_hot(targets, outputs.shape[1]).double()
    discount = 1.0 / torch.log2(torch.arange(outputs.shape[1], device=outputs.device).double() + 2.0)
    order = outputs.argsort(dim=1, descending=True, stable=True)
    best = (gains.sort(dim=1, descending=True).values * discount).sum(dim=1)
    rows = best > 0
    found = (gains.gather(1, order) * discount).sum(dim=1)[rows] / best[rows]
    return float(found.mean()) if len(found) else None


METRICS: dict[str, Callable[[Tensor, Tensor], float | None]] = {
    "accuracy": accuracy,
    "r2": r2,
    "auc": auc,
    "ndcg": ndcg,
}
