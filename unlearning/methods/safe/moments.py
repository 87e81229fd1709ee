"""Counts, means and covariances of each class, and their exact change when samples leave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unlearning.types import Refused


@dataclass(frozen=True)
class Moments:
    """Per class: how many samples, their mean, their covariance (divisor n - 1; zero below two samples).

    ``counts`` (C,), ``means`` (C, p) and ``covariances`` (C, p, p) are float64.
    """

    counts: Tensor
    means: Tensor
    covariances: Tensor

    @classmethod
    def of(cls, points: Tensor, classes: Tensor, number: int) -> Moments:
        """Compute the moments of ``points`` (n, p), float64, with classes (n,) in [0, ``number``)."""
        p = points.shape[1]
        counts = points.new_zeros(number)
        means = points.new_zeros(number, p)
        covariances = points.new_zeros(number, p, p)
        for y in torch.bincount(classes).nonzero().flatten().tolist():
            members = points[classes == y]
            counts[y] = len(members)
            means[y] = members.mean(0)
            centred = members - means[y]
            covariances[y] = centred.T @ centred / max(len(members) - 1, 1)
        return cls(counts, means, covariances)

    def without(self, points: Tensor, classes: Tensor) -> Moments:
        """Return the moments after ``points`` leave: n1 = n0 - k, d = mean0 - meank, and

        S1 = ((n0 - 1) S0 - (k - 1) Sk - (n0 k / n1) d d^T) / (n1 - 1).

        A class with one sample left has covariance zero; an emptied class has mean and covariance zero, so
        its members leave no trace here. Raises Refused when a class would lose more than it has.
        """
        gone = Moments.of(points, classes, len(self.counts))
        counts, means, covariances = self.counts - gone.counts, self.means.clone(), self.covariances.clone()
        if bool((counts < 0).any()):
            raise Refused(
                "The forget set holds more samples of a class than are left of it.",
                "Forget each sample once.",
            )
        for y in gone.counts.nonzero().flatten().tolist():
            n0, k, n1 = (float(v[y]) for v in (self.counts, gone.counts, counts))
            if n1 == 0:
                means[y], covariances[y] = 0.0, 0.0
                continue
            d = self.means[y] - gone.means[y]
            means[y] = self.means[y] + (k / n1) * d
            scatter = (n0 - 1) * self.covariances[y] - (k - 1) * gone.covariances[y] - (n0 * k / n1) * torch.outer(d, d)
            covariances[y] = scatter / (n1 - 1) if n1 > 1 else 0.0
        return Moments(counts, means, covariances)

    def log_joint(self, points: Tensor, shrinkage: float, ridge: float) -> Tensor:
        """Return log n_y + log N(x; m_y, S_y) up to a constant, (k, C), for ``points`` (k, p); -inf for an empty class.

        S_y is shrunk: ((n_y - 1) S_y + shrinkage P) / (n_y - 1 + shrinkage), P the pooled covariance plus
        ``ridge`` on the diagonal. With one sample left this is P.
        """
        free = (self.counts - 1).clamp(min=0)
        scatter = free[:, None, None] * self.covariances
        pooled = scatter.sum(0) / free.sum().clamp(min=1) + ridge * torch.eye(
            points.shape[1], dtype=points.dtype, device=points.device
        )
        shrunk = (scatter + shrinkage * pooled) / (free + shrinkage)[:, None, None]
        factors = torch.linalg.cholesky(shrunk)
        centred = (points[None] - self.means[:, None]).transpose(1, 2)
        distances = torch.linalg.solve_triangular(factors, centred, upper=False).square().sum(1)
        volumes = factors.diagonal(dim1=1, dim2=2).log().sum(1)
        joint: Tensor = self.counts.log()[:, None] - volumes[:, None] - distances / 2
        return joint.T
