"""SAFE's two figures for a stream of updates: the average rank and the dynamic regret.

Shen, Zhang, Zhao, Bialkowski, Chen and Xu, "Machine Unlearning for Streaming Forgetting": the rank R of table 1, and
the regret sum_t (R_t(w_t) - R_t(w_t*)) of theorem 2 with the risk of eq. 5, where ``diff`` is the Kullback-Leibler
divergence from the retrained model's class probabilities. Eq. 5 sums over samples; here they are means, so that the
figure does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from expunge_lab.experiment.rulers.loss_changes import ranks


def average_ranks(figures: Mapping[str, Sequence[float]], retrained: Sequence[float]) -> dict[str, float]:
    """Return each method's mean rank, from 1, by how near each of its figures is to the retrained model's.

    Equal distances share their mean rank.
    """
    names = list(figures)
    away = torch.tensor([[abs(a - b) for a, b in zip(figures[name], retrained, strict=True)] for name in names])
    columns = torch.stack([ranks(column) for column in away.round(decimals=9).T])
    return dict(zip(names, columns.mean(dim=0).tolist(), strict=True))


def mean_divergence(retrained: Tensor, unlearned: Tensor) -> float:
    """Return the mean over samples of KL(p || q) in nats, from class scores (n, c) of both models."""
    found = F.kl_div(unlearned.double().log_softmax(1), retrained.double().softmax(1), reduction="batchmean")
    return max(0.0, float(found))  # rounding can put equal models just below 0


def risk(retained: tuple[Tensor, Tensor], forgotten: tuple[Tensor, Tensor], weight: float = 1.0) -> float:
    """Return R_t: the divergence on those who stay plus ``weight`` times that on all who are forgotten so far.

    Each pair holds the class scores of the retrained and of the unlearned model. The retrained model's risk is 0, so
    this is the round's regret.
    """
    return mean_divergence(*retained) + weight * mean_divergence(*forgotten)
