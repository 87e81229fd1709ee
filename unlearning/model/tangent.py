"""The tangent of a network as an affine model: ``z_i(u) = f(x_i) + J_i u``, with J_i the Jacobian at public weights.

Solves go through the network (``Tangent.linearised``). A bound does not: there f(x_i) and J_i are data, computed in
float64 for each sample alone, and written out. So no step inside the network, a ReLU within rounding of 0
among it, can make the bound wrong. It covers what is done with these numbers: the scores, the residuals and the sums.

**Rounding of a score.** J_i u is summed in blocks of b numbers, and the m block sums are added, so that
``|z^ - z| <= gamma_{b+m+1} (|f(x_i)| + |J_i| |u|)``, and ``|J_i| |u|`` is at most the norm of the row times ||u||. With
b about sqrt(d) this is sqrt(d)/2 times below a plain sum's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unlearning.features.tangent import Linearised, Tangent
from unlearning.model.curvature import activations
from unlearning.model.linear_head import Affine, Curve, Scores, Summed, curve_of, gamma, head_of, plain_part
from unlearning.model.problem import Problem, build
from unlearning.types import Refused

KEPT = 2**27
"""elements of the network's passes that are kept between products (1 GiB in float64)"""
FEW = 8
"""samples from which rounding is estimated, where only the time to stop is asked for"""
ROWS = 2**23
"""numbers of the Jacobians that are held at once (64 MiB)"""


@dataclass(frozen=True)
class TangentModel:
    """A problem with a ``Tangent`` as its module, and its loss."""

    problem: Problem
    tangent: Tangent
    curve: Curve
    outputs: int

    def features(self, x: Tensor) -> Tensor:
        """Return the inputs in the problem's dtype."""
        return x.to(self.problem.dtype) if x.dtype.is_floating_point else x

    def lengths(self, features: Tensor) -> Tensor:
        """Return the Frobenius norm (n,) of each input's Jacobian."""
        return torch.cat([self.tangent.row(one)[1].reshape(1, -1).norm(dim=1) for one in torch.split(features, 1)])

    def on(self, features: Tensor) -> Scores:
        """Return the scores as a function of u, for inputs (n, ...)."""
        return TangentScores(self, features)


class TangentScores:
    """The scores of some inputs. Their passes through the network are kept where they fit, else made again."""

    def __init__(self, model: TangentModel, inputs: Tensor) -> None:
        self._model, self._inputs = model, inputs

    def at(self, w: Tensor) -> Tensor:
        return torch.cat([piece.values + piece.push(w) for piece in self._pieces()])

    def push(self, v: Tensor) -> Tensor:
        return torch.cat([piece.push(v) for piece in self._pieces()])

    def pull(self, r: Tensor) -> Tensor:
        parts = zip(self._pieces(), torch.split(r, self._size), strict=True)
        return torch.stack([piece.pull(part) for piece, part in parts]).sum(dim=0)

    def gradient(self, w: Tensor, y: Tensor) -> Tensor:
        return self.pull(self._model.curve.residual(self.at(w), y))

    @property
    def cheap(self) -> int:
        return min(FEW, len(self._inputs))

    def summed(self, w: Tensor, y: Tensor) -> Summed:
        """Return the gradient of the summed data losses at w (d,), from Jacobians that are written out."""
        curve, size, outputs = self._model.curve, len(w), self._model.outputs
        batch = max(1, ROWS // (size * outputs))
        total, carried, lengths = torch.zeros_like(w), 0.0, 0.0
        for inputs, targets in zip(torch.split(self._inputs[: len(y)], batch), torch.split(y, batch), strict=True):
            part = torch.zeros_like(w)
            for one, target in zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True):
                values, rows = self._model.tangent.row(one)
                scores, drift, norms = written_out(values, rows, w)
                norm = norms.norm()
                wrong = curve.wrong(scores.unsqueeze(0), target, drift.norm().reshape(1))
                residual = curve.residual(scores.unsqueeze(0), target)
                part += residual[0] @ rows
                carried += float(wrong * norm)
                lengths += float((residual.norm() + wrong) * norm)
            total += part
        return Summed(total, carried, lengths, batch + outputs + math.ceil(len(y) / batch))

    def curvature(self, coefficients: Tensor) -> Tensor:  # noqa: ARG002
        raise Refused(
            "A tangent's Hessian is never written out, and these samples are read by blocks.",
            "Raise EXPUNGE_SAMPLE_BYTES where the machine has the memory, or use a linear head on fixed features.",
        )

    @cached_property
    def _size(self) -> int:
        problem = self._model.problem
        return max(1, KEPT // (2 * activations(problem, problem.initial(), self._inputs)))

    @cached_property
    def _only(self) -> Linearised:
        return self._model.tangent.linearised(self._inputs)

    def _pieces(self) -> Iterator[Linearised]:
        if len(self._inputs) <= self._size:
            yield self._only
            return
        for part in torch.split(self._inputs, self._size):
            yield self._model.tangent.linearised(part)


def written_out(values: Tensor, rows: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores ``values + rows w`` (..., K), a bound on the error of each, and the norm of each row.

    ``values`` is (..., K), ``rows`` (..., K, d), float64. The bound is the module's.
    """
    block = math.isqrt(len(w)) + 1
    blocks = len(w) // block
    whole = blocks * block
    blocked = rows[..., :whole].reshape(*values.shape, blocks, block)
    sums = torch.einsum("...mb,mb->...m", blocked, w[:whole].reshape(blocks, block)).sum(dim=-1)
    norms = rows.norm(dim=-1)
    drift = gamma(block + blocks + 2) * (values.abs() + norms * w.norm())
    return values + (sums + rows[..., whole:] @ w[whole:]), drift, norms


def affine_of(problem: Problem) -> Affine | None:
    """Return the problem as a linear head or a tangent; None where it is neither."""
    return head_of(problem) or tangent_of(problem)


def tangent_of(problem: Problem) -> TangentModel | None:
    """Return the problem's tangent, or None: another module, an unnamed loss, or a part that was replaced or hooked."""
    module, loss = problem.module, problem.recipe.loss
    if type(module) is not Tangent or not isinstance(loss, str) or not plain_part(module):
        return None
    one = problem.recipe.holdout_tensors[0][:1].to(problem.device)
    with torch.no_grad():
        outputs = problem.outputs(problem.initial(), one)
    if outputs.dim() != 2 or (loss == "binary_logistic" and outputs.shape[1] != 1):
        return None
    return TangentModel(problem, module, curve_of(problem, loss), outputs.shape[1])


def drawn_start(problem: Problem) -> bool:
    """Tell whether a tangent's public weights are random: whether another seed of the training gives others."""
    recipe = problem.recipe
    one, other = (build(recipe, recipe.training.seed + shift).state_dict() for shift in (0, 1))
    return any(not torch.equal(value, other[name]) for name, value in one.items())
