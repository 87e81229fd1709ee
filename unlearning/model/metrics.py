"""What a holdout is measured by. Greater is better, and 1 is the best, for each named metric."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unlearning.types import RecipeError


def accuracy(outputs: Tensor, targets: Tensor) -> float | None:
    """Return the share of correct classes.

    Of one output (n,) or (n, 1) the sign is the class; targets (n,) are classes, or (n, k) shares of them.
    """
    if outputs.dim() == 1 or outputs[0].numel() == 1:
        _require(targets.numel() == len(outputs), "accuracy", outputs, targets)
        return float(((outputs.reshape(-1) > 0) == (targets.reshape(-1) > 0)).double().mean())
    classes = targets.argmax(dim=1) if targets.dim() == 2 and targets.shape[1] > 1 else targets.reshape(-1)
    _require(outputs.dim() == 2 and len(classes) == len(outputs), "accuracy", outputs, targets)
    return float((outputs.argmax(dim=1) == classes).double().mean())


def r2(outputs: Tensor, targets: Tensor) -> float | None:
    """Return the coefficient of determination R^2, of all numbers (n, ...) together; 0 where targets do not vary."""
    _require(targets.numel() == outputs.numel(), "r2", outputs, targets)
    found, wanted = outputs.double().reshape(-1), targets.double().reshape(-1)
    total = (wanted - wanted.mean()).square().sum()
    return float(1.0 - (found - wanted).square().sum() / total) if float(total) > 0 else 0.0


def auc(outputs: Tensor, targets: Tensor) -> float | None:
    """Return how often a positive sample has a higher score than a negative one; ties count half.

    Scores are one output, or the second of two minus the first. None: the targets (n,) are of one class.
    """
    scores = (outputs.reshape(len(outputs), -1) if outputs.dim() > 1 else outputs.unsqueeze(1)).double()
    score = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]
    _require(targets.numel() == len(outputs), "auc", outputs, targets)
    positive = targets.reshape(-1) > 0
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return None
    _, place, counts = torch.unique(score, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).double() - (counts - 1).double() / 2.0  # the mean rank of equal scores, from 1 on
    return float((ranks[place][positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def ndcg(outputs: Tensor, targets: Tensor, groups: Tensor | None = None) -> float | None:
    """Return the mean normalised discounted cumulative gain of a ranking of all items, by scores (n, items).

    Targets are the right item of each row (n,), or each item's gain (n, items) of 0 or more; rows without gain do not
    count, and None is for no row with any (Jarvelin and Kekalainen, 2002, with a logarithm to the base 2).

    With ``groups`` (n,) the items of a query are the rows of one group: scores (n,) and gains (n,).
    """
    if groups is not None:
        _require(outputs.numel() == targets.numel() == len(groups), "ndcg", outputs, targets)
        return _of_groups(outputs.reshape(-1), targets.reshape(-1).double(), groups)
    if outputs.dim() < 2 or outputs[0].numel() == 1:
        raise RecipeError(
            "The metric ndcg ranks the items of a row, and the model gives one score a row.",
            "Give holdout_groups, the query of each row of the holdout, or a function as metric.",
        )
    chosen = (
        targets.dim() == 1
        and not targets.is_floating_point()
        and 0 <= int(targets.min()) <= int(targets.max()) < outputs.shape[1]
    )
    _require(outputs.dim() == 2 and (chosen or targets.shape == outputs.shape), "ndcg", outputs, targets)
    gains = targets.double() if targets.dim() == 2 else torch.nn.functional.one_hot(targets, outputs.shape[1]).double()
    found = _gains(outputs, gains)
    return float(found.mean()) if len(found) else None


def _gains(scores: Tensor, gains: Tensor) -> Tensor:
    """Return the normalised gain of each row with any, of scores and gains (n, items)."""
    discount = 1.0 / torch.log2(torch.arange(scores.shape[1], device=scores.device).double() + 2.0)
    order = scores.argsort(dim=1, descending=True, stable=True)
    best = (gains.sort(dim=1, descending=True).values * discount).sum(dim=1)
    rows = best > 0
    return (gains.gather(1, order) * discount).sum(dim=1)[rows] / best[rows]


def _of_groups(scores: Tensor, gains: Tensor, groups: Tensor) -> float | None:
    order = groups.argsort(stable=True)
    _, inverse = torch.unique(groups, return_inverse=True)
    sizes = torch.bincount(inverse).tolist()
    queries = zip(torch.split(scores[order], sizes), torch.split(gains[order], sizes), strict=True)
    found = torch.cat([_gains(some.unsqueeze(0), theirs.unsqueeze(0)) for some, theirs in queries])
    return float(found.mean()) if len(found) else None


def _require(fits: bool, metric: str, outputs: Tensor, targets: Tensor) -> None:
    if not fits:
        raise RecipeError(
            f"The metric {metric} takes no outputs {tuple(outputs.shape)} with targets {tuple(targets.shape)}.",
            "Choose another, or give a function (outputs, targets) -> number.",
        )


METRICS: dict[str, Callable[..., float | None]] = {
    "accuracy": accuracy,
    "r2": r2,
    "auc": auc,
    "ndcg": ndcg,
}
