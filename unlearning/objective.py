"""The objective of a set of samples, whole: value, gradient and Hessian products, however many samples there are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vjp

from unlearning.curvature import activations, hessian_products
from unlearning.heads import head_of
from unlearning.problem import Problem
from unlearning.protocol import Examples

WORKING_SET = 2**26
"""elements of intermediate results that one piece of the samples may take (512 MiB in float64)"""


class Objective:
    """``F_D(w) = (1/|D|) sum_{i in D} l_i(w) + (1/2) sum_j decay_j w_j^2`` over ``examples`` (at least one), all in
    ``problem.dtype``.

    Samples go through in pieces that fit ``WORKING_SET``. What does not depend on the direction of a product is
    computed once: the features of a linear head, or the gradient's graph where one piece holds everyone.
    """

    def __init__(self, problem: Problem, examples: Examples) -> None:
        self.problem = problem
        self.head = head_of(problem)
        self._take(examples.inputs if self.head is None else self.head.features(examples.inputs), examples.targets)

    def drawn(self, places: Tensor) -> Objective:
        """The objective of the samples at ``places`` (m,) of these, repeats allowed."""
        other = copy.copy(self)
        places = places.to(self._inputs.device)
        other._take(self._inputs[places], self._targets[places])
        return other

    def _take(self, inputs: Tensor, targets: Tensor) -> None:
        self.count = len(inputs)
        self._inputs, self._targets = inputs, targets
        rows = self._rows()
        self._pieces = list(zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True))

    def value(self, w: Tensor) -> Tensor:
        """F_D(w), a scalar."""
        total = torch.stack([self._losses(w, x, y).sum() for x, y in self._pieces]).sum()
        return total / self.count + 0.5 * (self.problem.decay * w).dot(w)

    def gradient(self, w: Tensor) -> Tensor:
        """grad F_D(w), (d,)."""
        total = self.problem.decay * w
        for x, y in self._pieces:
            total = total + self._gradient(w, x, y) * (len(x) / self.count)
        return total

    def products(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """v (d,) -> (Hessian of F_D at w) v, (d,), for many v at one w."""
        parts = [(len(x) / self.count, self._product(w, x, y)) for x, y in self._pieces]

        def product(v: Tensor) -> Tensor:
            total = self.problem.decay * v
            for share, part in parts:
                total = total + share * part(v)
            return total

        return product

    def _losses(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if self.head is not None:
            return self.problem.losses(x @ self.head.matrix(w).T, y)
        with torch.no_grad():
            return self.problem.sample_losses(w, x, y)

    def _gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.problem.gradient(w, x, y) if self.head is None else self.head.gradient(w, x, y)

    def _product(self, w: Tensor, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """v (d,) -> H v for the mean data loss of one piece."""
        if self.head is not None:
            return self.head.operator(w, x, y)
        if len(self._pieces) > 1:
            return lambda v: hessian_products(self.problem, w, x, y, v.unsqueeze(0))[0]
        pull = vjp(lambda u: grad(self.problem.mean_loss)(u, x, y), w)[1]
        return lambda v: pull(v)[0].detach()

    def _rows(self) -> int:
        """Samples in a piece. Four: a product holds the activations, their gradients, and a tangent of each."""
        if self.head is not None:
            return max(1, WORKING_SET // (4 * self.head.layer.out_features))
        return max(1, WORKING_SET // (4 * max(1, activations(self.problem, self.problem.initial(), self._inputs))))
