"""Newton step and infinitesimal jackknife: what HF (arXiv 2404.01712, section 4.4) compares recollection with.

Both keep the curvature of the trained model and step from the gradient of the forgotten samples U alone, m of n:
``a_NS = 1/(n-m) (H_{S-U} + mu I)^{-1} sum_{i in U} grad l_i(w)`` (Sekhari et al. 2021) and
``a_IJ = 1/n (H_S + mu I)^{-1} sum_{i in U} grad l_i(w)`` (Suriyakumar and Wilson 2022), with the mean Hessian H over
the samples named, weight decay included, and the damping mu of the paper. They are for comparison and are never offered
as methods: at weights that are no minimiser the gradient of those who stay is missing in them.

The papers store H or its inverse, d^2 numbers. Here the system is solved by products with H. H need not be positive
definite: the residual is minimised over the Krylov space, which is what MINRES does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearning.model.curvature import hessian_products
from unlearning.model.problem import Problem
from unlearning.types import Examples

DAMPING = 0.01
"""mu, as HF sets it (section 5.1, after Koh and Liang)"""


@dataclass(frozen=True)
class SolvedStep:
    """A change of the weights, (d,), with ``||b - A change|| = residual * ||b||`` after so many products with A."""

    change: Tensor
    residual: float
    products: int


def newton_step(
    problem: Problem,
    w: Tensor,
    examples: Examples,
    gone: Sequence[int],
    *,
    damping: float = DAMPING,
    residual: float = 1e-4,
    products: int = 300,
) -> SolvedStep:
    """Return a_NS for forgetting the positions ``gone`` from the model w (d,) that was trained on ``examples``.

    The solve ends at a relative ``residual``, or after so many ``products``; the step says which.

    Raises:
        ValueError: ``gone`` is empty or is everyone.
    """
    forgotten = torch.tensor(gone, dtype=torch.int64)
    left = examples.without(forgotten)
    return _step(problem, w, left, examples.only(forgotten), damping=damping, residual=residual, products=products)


def infinitesimal_jackknife(
    problem: Problem,
    w: Tensor,
    examples: Examples,
    gone: Sequence[int],
    *,
    damping: float = DAMPING,
    residual: float = 1e-4,
    products: int = 300,
) -> SolvedStep:
    """Return a_IJ, whose Hessian is everyone's. Arguments and errors are those of ``newton_step``."""
    forgotten = examples.only(torch.tensor(gone, dtype=torch.int64))
    return _step(problem, w, examples, forgotten, damping=damping, residual=residual, products=products)


def _step(
    problem: Problem,
    w: Tensor,
    curved: Examples,
    forgotten: Examples,
    *,
    damping: float,
    residual: float,
    products: int,
) -> SolvedStep:
    if not len(forgotten) or not len(curved):
        raise ValueError(f"{len(forgotten)} samples are to be forgotten, {len(curved)} curve: give some of each.")
    gradient = problem.gradient(w, forgotten.inputs, forgotten.targets) + problem.decay * w

    def damped(v: Tensor) -> Tensor:
        return _product(problem, w, curved, v) + damping * v

    return minimal_residual(damped, gradient * (len(forgotten) / len(curved)), residual, products)


def _product(problem: Problem, w: Tensor, examples: Examples, v: Tensor) -> Tensor:
    """Return H v (d,) over ``examples``, weight decay included."""
    return hessian_products(problem, w, examples.inputs, examples.targets, v.unsqueeze(0))[0] + problem.decay * v


def minimal_residual(product: Callable[[Tensor], Tensor], b: Tensor, residual: float, products: int) -> SolvedStep:
    """Minimise ||b - A x|| for a symmetric A, which may be indefinite, over its Krylov space of growing size.

    The basis is kept and orthogonalised in full: that is safe in float32, and takes ``products`` vectors of memory.
    """
    length = float(b.norm())
    if length == 0.0:
        return SolvedStep(torch.zeros_like(b), 0.0, 0)
    basis = [b / length]
    columns: list[Tensor] = []
    while True:
        image = product(basis[-1])
        matrix = torch.stack(basis)
        column = matrix @ image
        image = image - matrix.T @ column
        again = matrix @ image
        image = image - matrix.T @ again
        rest = image.norm()
        columns.append(torch.cat([column + again, rest.unsqueeze(0)]).double())
        weights, left = _least_squares(columns, length)
        if left <= residual * length or len(columns) == min(products, len(b)) or float(rest) <= 1e-12 * length:
            return SolvedStep(matrix.T @ weights.to(b), left / length, len(columns))
        basis.append(image / rest)


def _least_squares(columns: Sequence[Tensor], length: float) -> tuple[Tensor, float]:
    """Return y (k,) that minimises ||length e_1 - T y||, and that norm; T (k+1, k) has these columns."""
    size = len(columns)
    matrix = torch.zeros(size + 1, size, dtype=torch.float64)
    for place, column in enumerate(columns):
        matrix[: len(column), place] = column
    side = torch.zeros(size + 1, 1, dtype=torch.float64)
    side[0] = length
    found = torch.linalg.lstsq(matrix, side).solution
    return found[:, 0], float((side - matrix @ found).norm())
