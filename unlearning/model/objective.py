"""The objective of a set of samples, whole: value, gradient and Hessian products, however many samples there are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vjp

from unlearning.model.curvature import activations, hessian_products
from unlearning.model.linear_head import added_hessian, hessian
from unlearning.model.problem import Problem
from unlearning.model.tangent import affine_of
from unlearning.types import Examples

WORKING_SET = 2**26
"""elements of intermediate results that one piece of the samples may take (512 MiB in float64)"""

Product: TypeAlias = Callable[[Tensor], Tensor]
"""v (d,) -> A v (d,)"""


@dataclass(frozen=True)
class Point:
    """F_D around one w: its value (a scalar), its gradient (d,), and the product with its Hessian."""

    value: Tensor
    gradient: Tensor
    product: Product


class Objective:
    """``F_D(w) = (1/|D|) sum_{i in D} l_i(w) + (1/2) sum_j decay_j w_j^2`` over ``examples`` (at least one), all in
    ``problem.dtype``.

    Samples in memory go through in pieces that fit ``WORKING_SET``. What does not depend on the direction of a product
    is computed once: the features of a linear head, or the gradient's graph where one piece holds all. Samples
    that are read by blocks are read once for a value and a gradient, and once for a Hessian, which is written out.
    """

    def __init__(self, problem: Problem, examples: Examples) -> None:
        self.problem, self.model = problem, affine_of(problem)
        self.count, self._examples = len(examples), examples
        self._pieces: list[tuple[Tensor, Tensor]] = []
        if examples.held or self.model is None:  # without a closed form, samples that are not held are refused
            self._take(self._features(examples.inputs), examples.targets)

    def drawn(self, places: Tensor) -> Objective:
        """Return the objective of the samples at ``places`` (m,) of these, repeats allowed."""
        other = copy.copy(self)
        if self._pieces:
            places = places.to(self._inputs.device)
            other._take(self._inputs[places], self._targets[places])
        else:
            inputs, targets = self._examples.pick(places)
            other._take(self._features(inputs), targets)
        return other

    def at(self, w: Tensor) -> Point:
        """Return F_D around w (d,)."""
        parts = [(len(x) / self.count, self._slope(w, x, y)) for x, y in self._all()]
        decayed = self.problem.decay * w
        return Point(
            0.5 * decayed.dot(w) + _sum(share * value for share, (value, _) in parts),
            decayed + _sum(share * gradient for share, (_, gradient) in parts),
            _when_asked(lambda: self.products(w)),
        )

    def products(self, w: Tensor) -> Product:
        """Return ``at(w).product`` alone."""
        if not self._pieces and self.model is not None:
            blocks = ((self.model.on(x), y) for x, y in self._all())
            written_out = added_hessian(self.model.curve, blocks, w)
            return lambda v: self.problem.decay * v + written_out @ v
        parts = [(len(x) / self.count, self._product(w, x, y)) for x, y in self._pieces]
        return lambda v: self.problem.decay * v + _sum(share * part(v) for share, part in parts)

    def _take(self, inputs: Tensor, targets: Tensor) -> None:
        self.count = len(inputs)
        self._inputs, self._targets = inputs, targets
        rows = self._rows()
        self._pieces = list(zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True))

    def _all(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the features, or the inputs, and the targets of all samples, some at a time."""
        return self._pieces or ((self._features(x), y) for x, y in self._examples.blocks())

    def _features(self, inputs: Tensor) -> Tensor:
        return inputs if self.model is None else self.model.features(inputs)

    def _slope(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean data loss of one piece at w, and its gradient (d,)."""
        if self.model is None:
            gradient, value = grad_and_value(self.problem.mean_loss)(w, x, y)
            return value, gradient
        scores = self.model.on(x)
        z = scores.at(w)
        return self.problem.losses(z, y).mean(), scores.pull(self.model.curve.residual(z, y)) / len(x)

    def _product(self, w: Tensor, x: Tensor, y: Tensor) -> Product:
        if self.model is not None:
            return hessian(self.model.curve, self.model.on(x), w, y)
        if len(self._pieces) > 1:
            return lambda v: hessian_products(self.problem, w, x, y, v.unsqueeze(0))[0]
        return _kept_product(self.problem, w, x, y)

    def _rows(self) -> int:
        """Return the samples in a piece. Four: a product holds activations, their gradients, and a tangent of each."""
        if self.model is not None:
            return max(1, WORKING_SET // (4 * self.model.outputs))
        return max(1, WORKING_SET // (4 * max(1, activations(self.problem, self.problem.initial(), self._inputs))))


def _kept_product(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Product:
    """Return v (d,) -> H v (d,) over one graph of the gradient, built when the first product is asked for."""

    def made() -> Product:
        pull: Callable[[Tensor], tuple[Tensor]] = vjp(lambda u: grad(problem.mean_loss)(u, x, y), w)[1]
        return lambda v: pull(v)[0].detach()

    return _when_asked(made)


def _when_asked(make: Callable[[], Product]) -> Product:
    """Return the product that ``make`` returns, made when it is asked for first."""
    made = cache(make)
    return lambda v: made()(v)  # noqa: PLW0108 (inlined, it would be made at once)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    first, *rest = terms
    for term in rest:
        first = first + term
    return first
