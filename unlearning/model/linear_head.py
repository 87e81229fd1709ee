"""Linear heads on fixed features: gradients and Hessian products in closed form, as matrix products.

A head is one trained ``nn.Linear``, alone or last in an ``nn.Sequential`` with other parts without a trained parameter,
under one of the named losses. No part of it may have hooks, parametrisations or a replaced ``forward``. What a part
does when it is called cannot be read from its structure: ``closed_form`` compares numbers.

For features phi_i (a constant 1 appended where there is a bias) and the weight matrix W (K, D), with residual
r_i = dl/dz and C_i = d^2 l/dz^2 at z_i = W phi_i:
``grad = (1/n) sum r_i phi_i^T`` and ``H V = (1/n) sum (C_i V phi_i) phi_i^T``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from unlearning.model.problem import Problem
from unlearning.types import Refused

ROUND_OFF = 2.0**-53
"""of float64"""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
ANY_GLOBAL_HOOK: Callable[[], bool] = torch.nn.modules.module._has_any_global_hook
REPLACED = ("forward", "_call_impl", "_slow_forward", "_compiled_call_impl")
"""what an instance can replace of its class's"""
MANY_CLASSES = 64
"""from here on torch's softmax of each row is the faster one"""
PIECE, LEAST_ROWS = 2**18, 256
"""numbers of the features (2 MB) that are summed at once, and the least rows of them"""
MOST_WRITTEN_OUT = 2_000
"""weights of a Hessian that is written out (32 MB in float64)"""


@dataclass(frozen=True)
class Curve:
    """One loss as a function of its scores z (n, K).

    ``residual(z, y)`` is dl/dz (n, K). ``coefficients(z, y)`` (n, K) is all that d^2 l/dz^2 depends on, and
    ``bent(coefficients, u)`` applies it to u (n, m, K). ``steepness`` bounds the spectral norm of d^2 l/dz^2 for a
    target of ``weight`` 1; ``weight(y)`` (n,) is what a sample's target multiplies that by (float64).
    ``rounding(z, y)`` (n,) bounds, in units of the float64 round-off 2^-53, the error of the computed residual's
    Euclidean norm, given that exp and the sigmoid are accurate to 4 units in the last place.
    """

    residual: Callable[[Tensor, Tensor], Tensor]
    coefficients: Callable[[Tensor, Tensor], Tensor]
    bent: Callable[[Tensor, Tensor], Tensor]
    steepness: float
    weight: Callable[[Tensor], Tensor]
    rounding: Callable[[Tensor, Tensor], Tensor]
    classifies: bool

    def bend(self, z: Tensor, y: Tensor, u: Tensor) -> Tensor:
        """Return (d^2 l/dz^2 at z (n, K)) u for u (n, m, K)."""
        return self.bent(self.coefficients(z, y), u)

    def wrong(self, z: Tensor, y: Tensor, drift: Tensor) -> Tensor:
        """Return a bound (n,) on the error of the residuals at scores z that are up to ``drift`` (n,) off."""
        return self.steepness * self.weight(y) * drift + ROUND_OFF * self.rounding(z, y)


@dataclass(frozen=True)
class Summed:
    """A sum of gradients of the data losses, (d,), and what its rounding depends on.

    The computed sum is at most ``carried + gamma_terms * size`` from the true one (``convex``): ``carried`` comes from
    wrong residuals, ``size`` is the sum of the gradients' norms, ``terms`` how many summands a coordinate has.
    """

    gradient: Tensor
    carried: float
    size: float
    terms: int


class Scores(Protocol):
    """The scores z (n, K) of some samples, affine in w (d,): ``z(w) = z(0) + J w``."""

    def at(self, w: Tensor) -> Tensor:
        """Return z(w) (n, K)."""

    def push(self, v: Tensor) -> Tensor:
        """Return J v (n, K)."""

    def pull(self, r: Tensor) -> Tensor:
        """Return J^T r (d,) for r (n, K)."""

    def gradient(self, w: Tensor, y: Tensor) -> Tensor:
        """Return the summed gradient (d,) of the data losses at w (d,), for the targets y of all samples."""

    @property
    def cheap(self) -> int:
        """Return for how many samples ``summed`` costs no more than a few products."""

    def summed(self, w: Tensor, y: Tensor) -> Summed:
        """Sum the gradients of the data losses at w (d,), for the targets y of the first samples, or of all."""

    def curvature(self, coefficients: Tensor) -> Tensor:
        """Return the summed Hessian (d, d) of the data losses, from ``Curve.coefficients`` (n, K).

        Raises:
            Refused: it takes too much memory, or the model has no such matrix.
        """


class Affine(Protocol):
    """A model with scores that are affine in its weights, under one of the named losses."""

    @property
    def problem(self) -> Problem: ...

    @property
    def curve(self) -> Curve: ...

    @property
    def outputs(self) -> int:
        """Return K, how many scores a sample has."""

    def features(self, x: Tensor) -> Tensor:
        """Return what ``on`` takes, from inputs (n, ...)."""

    def lengths(self, features: Tensor) -> Tensor:
        """Return at least the spectral norm of each sample's Jacobian, (n,)."""

    def on(self, features: Tensor) -> Scores:
        """Return the scores of these samples as a function of w."""


@dataclass(frozen=True)
class FeatureScores:
    """``z = W phi`` for features phi (n, D)."""

    head: Head
    phi: Tensor

    def at(self, w: Tensor) -> Tensor:
        return self.phi @ self.head.matrix(w).T

    push = at

    def pull(self, r: Tensor) -> Tensor:
        return self.head.vector(r.T @ self.phi)

    def gradient(self, w: Tensor, y: Tensor) -> Tensor:
        matrix = self.head.matrix(w)
        total = torch.zeros_like(matrix)
        for phi, target in self._pieces(y):
            total += self.head.curve.residual(phi @ matrix.T, target).T @ phi
        return self.head.vector(total)

    @property
    def cheap(self) -> int:
        return len(self.phi)

    def summed(self, w: Tensor, y: Tensor) -> Summed:
        curve, matrix, columns = self.head.curve, self.head.matrix(w), self.phi.shape[1]
        total, carried, size, terms, pieces = torch.zeros_like(matrix), 0.0, 0.0, 0, 0
        for phi, target in self._pieces(y):
            scores = phi @ matrix.T
            drift = gamma(columns + 1) * (phi.abs() @ matrix.abs().T).norm(dim=1)
            wrong, residual = curve.wrong(scores, target, drift), curve.residual(scores, target)
            lengths = phi.norm(dim=1)
            total += residual.T @ phi
            carried += float(wrong @ lengths)
            size += float((residual.norm(dim=1) + wrong) @ lengths)
            terms, pieces = max(terms, len(phi)), pieces + 1
        return Summed(self.head.vector(total), carried, size, terms + pieces)

    def _pieces(self, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features and targets of some rows after the other: what is computed of them fits into a cache."""
        rows = max(LEAST_ROWS, PIECE // self.phi.shape[1])
        return zip(torch.split(self.phi[: len(y)], rows), torch.split(y, rows), strict=True)

    def curvature(self, coefficients: Tensor) -> Tensor:
        phi, outputs, dimension = self.phi, self.head.outputs, self.head.problem.dimension
        if dimension > MOST_WRITTEN_OUT:
            raise Refused(
                f"Samples that are read by blocks are solved with a Hessian that is written out, for at most "
                f"{MOST_WRITTEN_OUT:,} weights; this model has {dimension:,}.",
                "Raise EXPUNGE_SAMPLE_BYTES where the machine has the memory, or use fewer features.",
            )
        whole = phi.new_empty(outputs, phi.shape[1], outputs, phi.shape[1])
        for one, unit in enumerate(torch.eye(outputs, dtype=phi.dtype, device=phi.device)):
            bent = self.head.curve.bent(coefficients, unit.expand(len(phi), 1, outputs)).squeeze(1)
            for other in range(outputs):
                whole[one, :, other, :] = phi.T @ (bent[:, other : other + 1] * phi)
        rows = self.head.vector(whole.flatten(0, 1)).T
        return self.head.vector(rows.reshape(dimension, outputs, phi.shape[1]))


@dataclass(frozen=True)
class Head:
    """The trained linear layer of a problem and what comes before it."""

    problem: Problem
    before: nn.Sequential
    layer: nn.Linear
    curve: Curve

    @property
    def outputs(self) -> int:
        return self.layer.out_features

    def on(self, features: Tensor) -> Scores:
        """Return the scores as a function of w, for features (n, D)."""
        return FeatureScores(self, features)

    def features(self, x: Tensor) -> Tensor:
        """Return phi (n, D), the constant 1 included where the layer has a bias.

        Raises:
            Refused: what comes before the layer gives a tensor of another shape.
        """
        inputs = x.to(self.problem.dtype) if x.dtype.is_floating_point else x
        with torch.no_grad():
            features: Tensor = self.before(inputs)
        if features.dim() != 2:
            raise Refused(f"The head is fed a tensor of shape {tuple(features.shape)}.", "Put nn.Flatten() before it.")
        if self.layer.bias is None:
            return features
        return torch.cat([features, features.new_ones(len(features), 1)], dim=1)

    def lengths(self, features: Tensor) -> Tensor:
        """Return ||phi|| (n,), the norm of each sample's Jacobian."""
        norms: Tensor = features.norm(dim=1)
        return norms

    def matrix(self, w: Tensor) -> Tensor:
        """Return vectors (..., d) as matrices (..., K, D)."""
        rows, columns = self.layer.out_features, self.layer.in_features
        weight = w[..., : rows * columns].reshape(*w.shape[:-1], rows, columns)
        if self.layer.bias is None:
            return weight
        return torch.cat([weight, w[..., rows * columns :].unsqueeze(-1)], dim=-1)

    def vector(self, matrix: Tensor) -> Tensor:
        """Return matrices (..., K, D) as vectors (..., d)."""
        columns = self.layer.in_features
        weight = matrix[..., :columns].flatten(-2)
        return weight if self.layer.bias is None else torch.cat([weight, matrix[..., columns]], dim=-1)

    def gradient(self, w: Tensor, features: Tensor, y: Tensor) -> Tensor:
        """Return the gradient (d,) of the mean data loss."""
        residual = self.curve.residual(features @ self.matrix(w).T, y)
        return self.vector(residual.T @ features) / len(features)

    def products(self, w: Tensor, features: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
        """Return H V for the mean data loss and every row of ``vectors`` (m, d), without weight decay."""
        scores = features @ self.matrix(w).T
        shape = (len(features), len(vectors), self.layer.out_features)
        directions = (features @ self.matrix(vectors).flatten(0, 1).T).reshape(shape)
        bent = self.curve.bend(scores, y, directions).reshape(shape[0], -1)
        return self.vector((bent.T @ features).reshape(*shape[1:], -1)) / len(features)

    def own_products(self, w: Tensor, features: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
        """Return H_i v_i (n, d) for each sample's data loss and its row v_i of ``vectors`` (n, d), without decay."""
        scores = features @ self.matrix(w).T
        directions = (self.matrix(vectors) @ features.unsqueeze(-1)).squeeze(-1)
        bent = self.curve.bend(scores, y, directions.unsqueeze(1)).squeeze(1)
        return self.vector(bent.unsqueeze(-1) * features.unsqueeze(1))

    def sums(self, w: Tensor, features: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return ``sum_i weights[m, i] grad l_i`` (m, d) for weights (m, n), without weight decay."""
        residual = self.curve.residual(features @ self.matrix(w).T, y)
        weighted = (weights.unsqueeze(-1) * residual).transpose(1, 2).flatten(0, 1)
        return self.vector((weighted @ features).reshape(len(weights), residual.shape[1], -1))


def hessian(curve: Curve, scores: Scores, w: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Return v (d,) -> H v (d,) for the mean data loss at w (d,). What does not depend on v is kept."""
    coefficients = curve.coefficients(scores.at(w), y)
    return lambda v: scores.pull(curve.bent(coefficients, scores.push(v).unsqueeze(1)).squeeze(1)) / len(y)


def added_hessian(curve: Curve, blocks: Iterable[tuple[Scores, Tensor]], w: Tensor) -> Tensor:
    """Return the Hessian (d, d) of the mean data loss at w (d,), added up over blocks of scores and targets.

    It is for samples that are not all in memory: a product with it needs no further reading of them.
    """
    total, count = w.new_zeros(len(w), len(w)), 0
    for scores, y in blocks:
        total += scores.curvature(curve.coefficients(scores.at(w), y))
        count += len(y)
    return total / count


def gamma(terms: int) -> float:
    """Return Higham's gamma: the relative error of a sum of so many products, in any order, in float64."""
    return terms * ROUND_OFF / (1.0 - terms * ROUND_OFF)


def head_of(problem: Problem) -> Head | None:
    """Return the problem's linear head, or None where its structure shows none."""
    loss = problem.recipe.loss
    found = last_linear(problem.module)
    if not isinstance(loss, str) or found is None:
        return None
    before, layer = found
    if loss == "binary_logistic" and layer.out_features != 1:
        return None
    return Head(problem, before, layer, curve_of(problem, loss))


def last_linear(module: nn.Module) -> tuple[nn.Sequential, nn.Linear] | None:
    """Split a module into what comes before its only trained layer, and that layer; None where it shows none."""
    return _split(module) if untouched(module) else None


def _split(module: nn.Module) -> tuple[nn.Sequential, nn.Linear] | None:
    if type(module) is nn.Linear:
        return (nn.Sequential(), module) if all(value.requires_grad for value in module.parameters()) else None
    if type(module) is not nn.Sequential or len(module) == 0:
        return None
    *before, last = module
    if any(value.requires_grad for part in before for value in part.parameters()):
        return None
    found = _split(last)
    return None if found is None else (nn.Sequential(*before, *found[0]), found[1])


def curve_of(problem: Problem, loss: str) -> Curve:
    """Return the named loss as the problem's samples have it: times the sample's weight c, where samples have one.

    Then the residual and the second derivative are c times the loss's own, its smoothness c times as large. A residual
    is shorter than ``rounding``, which so covers the product's rounding too.
    """
    curve, apart = CURVES[loss], problem.apart
    if problem.recipe.samples.weight is None:
        return curve

    def times(function: Callable[[Tensor, Tensor], Tensor], z: Tensor, joined: Tensor, factor: float = 1.0) -> Tensor:
        y, weight = apart(joined)
        found = function(z, y)
        return found if weight is None else factor * found * weight.to(z.dtype).reshape(-1, *[1] * (found.dim() - 1))

    def heavy(joined: Tensor) -> Tensor:
        y, weight = apart(joined)
        return curve.weight(y) if weight is None else curve.weight(y) * weight

    return replace(
        curve,
        residual=lambda z, y: times(curve.residual, z, y),
        coefficients=lambda z, y: times(curve.coefficients, z, y),
        weight=heavy,
        rounding=lambda z, y: times(curve.rounding, z, y, factor=2.0),
    )


def _softmax_weight(y: Tensor) -> Tensor:
    """Return the row sum of soft labels, which multiplies log(sum exp z); 1 for the index of a class."""
    return y.double().sum(dim=1) if y.dtype.is_floating_point else _unit_weight(y)


def _softmax(z: Tensor) -> Tensor:
    """Return the softmax of each row of z (n, K)."""
    if z.shape[1] >= MANY_CLASSES:
        return z.softmax(dim=1)
    # torch takes one row at a time: of 5 classes it is ten times as fast across the rows
    return z.T.contiguous().softmax(dim=0).T.contiguous()


def _softmax_residual(z: Tensor, y: Tensor) -> Tensor:
    if not y.dtype.is_floating_point:
        shares = _softmax(z)
        return shares.scatter_add_(1, y.unsqueeze(1), shares.new_full((len(y), 1), -1.0))
    wanted = y.to(z.dtype)
    return wanted.sum(dim=1, keepdim=True) * _softmax(z) - wanted


def _softmax_coefficients(z: Tensor, y: Tensor) -> Tensor:
    p = _softmax(z)
    return y.to(z.dtype).sum(dim=1, keepdim=True) * p if y.dtype.is_floating_point else p


def _softmax_bent(c: Tensor, u: Tensor) -> Tensor:
    """Return s (diag(p) - p p^T) u from c = s p, where s is the sum of c: ``c u - c (c.u)/s``."""
    ones = c.new_ones(c.shape[1])  # a product with it sums short rows faster than sum does
    weighted, total = c.unsqueeze(1) * u, (c @ ones).unsqueeze(1)
    means = (weighted @ ones) / torch.where(total != 0, total, 1.0)
    return torch.addcmul(weighted, c.unsqueeze(1), means.unsqueeze(2), value=-1.0)


def _diagonal_bent(c: Tensor, u: Tensor) -> Tensor:
    return c.unsqueeze(1) * u


def _softmax_rounding(z: Tensor, y: Tensor) -> Tensor:
    # p = exp(z - max)/sum: the shift rounds by (range) units, once above and once below; exp, the sum of K terms and
    # the division add 4 + 4 + K + 1; the subtraction of the target 1. Soft labels: their sum s adds K, s p and the
    # subtraction, whose terms are at most s long, 3 more; all of it grows with s.
    classes = z.shape[1]
    single = 2.0 * (z.amax(dim=1) - z.amin(dim=1)) + classes + 16.0
    return _softmax_weight(y).to(z.dtype) * (single + classes + 4.0) if y.dtype.is_floating_point else single


def _unit_weight(y: Tensor) -> Tensor:
    return torch.ones(len(y), dtype=torch.float64, device=y.device)


def _signs(z: Tensor, y: Tensor) -> Tensor:
    if z.shape[1] == 1:
        positive = y.reshape(-1, 1) > 0
    else:
        positive = torch.arange(z.shape[1], device=z.device) == y.reshape(-1, 1)
    return torch.where(positive, 1.0, -1.0).to(z.dtype)


def _size(z: Tensor, y: Tensor) -> Tensor:
    return 8.0 + 2.0 * (z.abs().sum(dim=1) + y.reshape(len(z), -1).to(z.dtype).abs().sum(dim=1) + z.shape[1])


CURVES: dict[str, Curve] = {
    "cross_entropy": Curve(
        residual=_softmax_residual,
        coefficients=_softmax_coefficients,
        bent=_softmax_bent,
        steepness=0.5,
        weight=_softmax_weight,
        rounding=_softmax_rounding,
        classifies=True,
    ),
    "binary_logistic": Curve(
        residual=lambda z, y: z.sigmoid() - y.reshape(-1, 1).to(z.dtype),
        coefficients=lambda z, _y: z.sigmoid() * (-z).sigmoid(),
        bent=_diagonal_bent,
        steepness=0.25,
        weight=_unit_weight,
        rounding=lambda z, _y: torch.full_like(z[:, 0], 8.0),
        classifies=True,
    ),
    "squared_error": Curve(
        residual=lambda z, y: z - y.to(z.dtype).reshape(z.shape),
        coefficients=lambda z, _y: torch.ones_like(z),
        bent=_diagonal_bent,
        steepness=1.0,
        weight=_unit_weight,
        rounding=_size,
        classifies=False,
    ),
    "squared_hinge": Curve(
        residual=lambda z, y: -_signs(z, y) * F.relu(1.0 - _signs(z, y) * z),
        coefficients=lambda z, y: (_signs(z, y) * z < 1.0).to(z.dtype),
        bent=_diagonal_bent,
        steepness=1.0,
        weight=_unit_weight,
        rounding=_size,
        classifies=True,
    ),
}


def untouched(module: nn.Module) -> bool:
    """Tell whether every part does what its class says when it is called, and every parameter is separate."""
    parameters = list(module.parameters())
    return (
        not ANY_GLOBAL_HOOK()
        and all(plain_part(part) for part in module.modules())
        and all(_plain_parameter(value) for value in parameters)
        and len(list(module.named_parameters(remove_duplicate=False))) == len(parameters)
    )


def plain_part(part: nn.Module) -> bool:
    """Tell whether a part has no hook, no replaced method and no parametrisation."""
    own = vars(part)
    return (
        not any(own.get(name) for name in (*HOOKS, *REPLACED))
        and own.get("forward") is None
        and not is_parametrized(part)
    )


def _plain_parameter(value: nn.Parameter) -> bool:
    hooks = (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None))
    return type(value) is nn.Parameter and not any(hooks)
