"""KLoM: how far the outputs of unlearned models are from those of retrained ones, as distributions over trainings.

Georgiev, Rinberg, Park, Garg, Ilyas, Madry and Neel, "Attribute-to-Delete: Machine Unlearning via Datamodel Matching"
(arXiv 2410.23232), appendix E.1. For each sample, the Kullback-Leibler divergence between its margins under models that
were retrained without the forgotten and its margins under models that unlearned them; over samples, the 95th
percentile.
The paper has 100 models of each kind and histograms of 20 bins (``binned_divergences``). With few models a histogram is
mostly empty, so ``divergences`` fits normal distributions:

    KL(N(m_r, s_r^2) || N(m_u, s_u^2)) = log(s_u / s_r) + (s_r^2 + (m_r - m_u)^2) / (2 s_u^2) - 1/2.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 100.0
"""of one sample's divergence"""
BINS, LEAST_SHARE, CLIP = 20, 1e-5, 100.0
"""of a histogram: its bins, the least share of models in a bin, and the greatest margin"""


def klom(retrained: Tensor, unlearned: Tensor) -> float | None:
    """Return the 95th percentile over c samples of the divergence; margins are (k, c) each, k at least 3.

    None where retraining always gives the same margins: a training without randomness has no distribution.
    """
    if len(retrained) < 3 or len(unlearned) < 3:
        raise ValueError(f"KLoM needs at least 3 models of each kind; there are {len(retrained)}, {len(unlearned)}.")
    found = divergences(retrained, unlearned)
    return None if found is None else float(found.quantile(0.95))


def divergences(retrained: Tensor, unlearned: Tensor) -> Tensor | None:
    """Return each sample's divergence (c,), at most ``MOST``; None as ``klom``."""
    mean, deviation = retrained.double().mean(dim=0), retrained.double().std(dim=0)
    other, spread = unlearned.double().mean(dim=0), unlearned.double().std(dim=0)
    if bool((deviation <= 1e-6 * (1.0 + mean.abs())).any()):
        return None
    spread = spread.clamp(min=1e-300)
    exact = (spread / deviation).log() + (deviation**2 + (mean - other) ** 2) / (2 * spread**2) - 0.5
    return torch.nan_to_num(exact, nan=MOST, posinf=MOST).clamp(max=MOST)


def binned_divergences(retrained: Tensor, unlearned: Tensor) -> Tensor:
    """Return each sample's divergence (c,) by histograms, in nats: KL(unlearned || retrained), margins are (k, c) each.

    As the authors evaluate (their data-unlearning-bench, ``eval.py``): bins of equal width over the range of both, and
    ``LEAST_SHARE`` of the retrained models in a bin where there is none. The greatest margin is in the last bin; theirs
    leaves it out.
    """
    ours, goal = (margins.double().clamp(-CLIP, CLIP) for margins in (unlearned, retrained))
    low = torch.minimum(ours.min(dim=0).values, goal.min(dim=0).values)
    high = torch.maximum(ours.max(dim=0).values, goal.max(dim=0).values)
    width = torch.where(high > low, high - low, torch.ones_like(low)) / BINS
    p, q = (_shares(margins, low, width) for margins in (ours, goal))
    q = torch.where(p > 0, q.clamp(min=LEAST_SHARE), q)
    divergence: Tensor = (torch.special.xlogy(p, p) - torch.special.xlogy(p, q / q.sum(dim=0))).sum(dim=0)
    return divergence.clamp(min=0.0)  # rounding can put equal histograms just below 0


def _shares(margins: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Return the share of models in each bin (BINS, c)."""
    places = ((margins - low) / width).long().clamp(max=BINS - 1)
    counts = torch.zeros(BINS, margins.shape[1], dtype=torch.float64)
    return counts.scatter_add_(0, places, torch.ones_like(margins)) / len(margins)
