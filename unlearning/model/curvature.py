"""Curvature of the training objective: batched Hessian-vector products, solves, spectral norms, clipped steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from unlearning.model.linear_head import head_of
from unlearning.model.problem import Problem

ACTIVATION_LIMIT = 2**24
"""elements of intermediate results that one chunk of vectors may take (64 MiB in float32)"""


Products = Callable[[Tensor], Tensor]
"""rows v (k, d) to a matrix times each, (k, d)"""


def hessian_at(problem: Problem, w: Tensor, x: Tensor, y: Tensor, *, chunk: int | None = None) -> Products:
    """Return v (k, d) -> H v (k, d): H is the Hessian of the MEAN DATA loss at w, no decay.

    Linear heads use closed forms. Others: one vectorised reverse pass over the gradient's graph for ``chunk`` vectors
    at a time (H is symmetric, so v^T H = (H v)^T). The graph is built once, and kept for the next vectors.
    """
    head = head_of(problem)
    if head is not None:
        features = head.features(x)
        rows = chunk or max(1, ACTIVATION_LIMIT // max(1, len(x) * head.layer.out_features))
        return lambda vectors: torch.cat(
            [vectors[:0], *(head.products(w, features, y, part) for part in torch.split(vectors, rows) if len(part))]
        )
    return _in_chunks(_pullback(lambda u: grad(problem.mean_loss)(u, x, y), w), chunk or chunk_for(problem, w, x))


def hessian_products(
    problem: Problem, w: Tensor, x: Tensor, y: Tensor, vectors: Tensor, *, chunk: int | None = None
) -> Tensor:
    """Return ``hessian_at`` times every row of ``vectors`` (k, d)."""
    return hessian_at(problem, w, x, y, chunk=chunk)(vectors)


def gradient_and_product(problem: Problem, w: Tensor, x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient (d,) of the mean data loss at w and H v (d,), without decay, in one forward pass."""
    head = head_of(problem)
    if head is not None:
        features = head.features(x)
        return head.gradient(w, features, y), head.products(w, features, y, v.unsqueeze(0))[0]
    pulled = vjp(lambda u: grad(problem.mean_loss)(u, x, y), w)
    return pulled[0].detach(), pulled[1](v)[0].detach()


def gauss_newton_at(problem: Problem, w: Tensor, x: Tensor, y: Tensor, *, chunk: int | None = None) -> Products:
    """Return v (k, d) -> G v (k, d): G = (1/n) sum J_i^T C_i J_i, the curvature without the model's.

    J_i is the Jacobian of sample i's outputs, C_i the Hessian of its loss in the outputs. For linear heads G = H.
    """
    if head_of(problem) is not None:
        return hessian_at(problem, w, x, y, chunk=chunk)
    return _in_chunks(_gauss_newton_product(problem, w, x, y), chunk or chunk_for(problem, w, x))


def gauss_newton_products(
    problem: Problem, w: Tensor, x: Tensor, y: Tensor, vectors: Tensor, *, chunk: int | None = None
) -> Tensor:
    """Return ``gauss_newton_at`` times every row of ``vectors`` (k, d)."""
    return gauss_newton_at(problem, w, x, y, chunk=chunk)(vectors)


def own_hessian_products(problem: Problem, w: Tensor, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
    """Return H_i v_i (n, d): the Hessian of sample i's data loss at w, times its own row v_i of ``vectors`` (n, d)."""
    head = head_of(problem)
    if head is not None:
        return head.own_products(w, head.features(x), y, vectors)

    def own(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return _pullback(lambda u: grad(problem.mean_loss)(u, x.unsqueeze(0), y.unsqueeze(0)), w)(v)

    products: Tensor = vmap(own)(x, y, vectors)
    return products.detach()


def own_gauss_newton_products(problem: Problem, w: Tensor, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
    """Return J_i^T C_i J_i v_i (n, d) for every sample i and its own row v_i of ``vectors`` (n, d)."""
    if head_of(problem) is not None:
        return own_hessian_products(problem, w, x, y, vectors)

    def own(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return _gauss_newton_product(problem, w, x.unsqueeze(0), y.unsqueeze(0))(v)

    products: Tensor = vmap(own)(x, y, vectors)
    return products.detach()


def chunk_for(problem: Problem, w: Tensor, x: Tensor) -> int:
    """Return how many vectors to push through at once: their results stay below ``ACTIVATION_LIMIT`` elements."""
    return max(1, ACTIVATION_LIMIT // max(1, 2 * activations(problem, w, x) * len(x) + 2 * problem.dimension))


def activations(problem: Problem, w: Tensor, x: Tensor) -> int:
    """Count the numbers that the model's parts put out for one sample."""
    sizes: list[int] = []
    hooks = [
        part.register_forward_hook(lambda _part, _inputs, out: sizes.append(_elements(out)))
        for part in problem.module.modules()
    ]
    try:
        with torch.no_grad():
            problem.outputs(w, x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return sum(sizes)


def clipped_map(gradient: Tensor, scale: float, vectors: Tensor) -> Tensor:
    """Apply the derivative of ``g -> min(1, C/||g||) g`` at a batch gradient g (d,) to rows v of ``vectors`` (k, d).

    Inside the ball (scale 1) that is v itself; outside it is ``s (v - g (g.v)/||g||^2)``: a step of fixed length C can
    only turn.
    """
    if scale >= 1.0:
        return vectors
    direction = gradient / gradient.norm()
    turned: Tensor = vectors - (vectors @ direction).unsqueeze(-1) * direction
    return scale * turned


@dataclass(frozen=True)
class Solution:
    """x with ``||b - A x|| = residual * ||b||`` after so many products with A.

    ``curvature`` is the least v^T A v / v^T v among the directions that were searched; infinite when there was none.
    """

    x: Tensor
    residual: float
    iterations: int
    curvature: float = math.inf


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    tolerance: float,
    iterations: int = 1000,
    *,
    precondition: Callable[[Tensor], Tensor] | None = None,
) -> Solution:
    """Solve A x = b for a positive definite A given by ``product`` (d,) -> (d,).

    ``precondition`` multiplies by about the inverse of A. Stops when the recomputed-by-recursion residual is at most
    ``tolerance * ||b||``, after ``iterations``, or when a direction of non-positive curvature is met, of A or of
    ``precondition`` (x is then the last iterate, with its residual).
    """
    x = torch.zeros_like(b)
    residual = b.clone()
    direction = residual if precondition is None else precondition(residual)
    squared, sloped = float(residual.dot(residual)), float(residual.dot(direction))
    goal = squared * tolerance**2
    count = 0
    least = math.inf
    while squared > goal and sloped > 0.0 and count < iterations:
        image = product(direction)
        curvature = float(direction.dot(image))
        least = min(least, curvature / float(direction.dot(direction)))
        if not curvature > 0.0:
            break
        step = sloped / curvature
        x = x + step * direction
        residual = residual - step * image
        squared = float(residual.dot(residual))
        applied = residual if precondition is None else precondition(residual)
        previous, sloped = sloped, float(residual.dot(applied))
        direction = applied + (sloped / previous) * direction
        count += 1
    norm = float(b.norm())
    return Solution(x, (squared**0.5) / norm if norm > 0 else 0.0, count, least)


def solve_rows(
    products: Callable[[Tensor], Tensor], sides: Tensor, tolerance: float, iterations: int = 2000
) -> Solution:
    """Solve A x = b for every row b of ``sides`` (k, d) at once; ``products`` maps rows (k, d) to A times each.

    Stops when every row's residual is at most ``tolerance`` times its right side; ``residual`` is the worst row's.
    """
    x = torch.zeros_like(sides)
    residual, direction = sides.clone(), sides.clone()
    squared = residual.square().sum(dim=1)
    goal = squared * tolerance**2
    count = 0
    while bool((squared > goal).any()) and count < iterations:
        image = products(direction)
        curvature = (direction * image).sum(dim=1)
        step = torch.where(curvature > 0.0, squared / curvature, torch.zeros_like(squared)).unsqueeze(1)
        x += step * direction
        residual -= step * image
        previous, squared = squared, residual.square().sum(dim=1)
        ratio = torch.where(previous > 0.0, squared / previous, torch.zeros_like(squared))
        direction = residual + ratio.unsqueeze(1) * direction
        count += 1
    shares = torch.where(goal > 0.0, squared / goal, torch.zeros_like(squared))
    return Solution(x, float(shares.max()) ** 0.5 * tolerance, count)


def refined_conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    quick: Callable[[Tensor], Tensor],
    b: Tensor,
    tolerance: float,
    *,
    iterations: int = 1000,
) -> Solution:
    """Solve A x = b (d,) to float64, mostly in float32: ``quick`` is A there, ``product`` in float64.

    Iterative refinement: solve for the residual in float32, correct, compute the residual again in float64. Where
    float32 gets no further (it meets no positive curvature, or takes less than a quarter off the residual), the solve
    continues in float64. The residual of the solution is the recomputed one.
    """
    x, residual = torch.zeros_like(b), b
    size = norm = float(b.norm())
    goal = tolerance * size
    count, least = 0, math.inf
    while norm > goal and count < iterations:
        step = conjugate_gradients(quick, (residual / norm).float(), max(0.5 * goal / norm, 5e-7), iterations - count)
        trial = x + norm * step.x.to(b.dtype)
        fresh = b - product(trial)
        count += step.iterations + 1
        if not (step.curvature > 0.0 and float(fresh.norm()) <= 0.75 * norm):
            break
        x, residual, norm, least = trial, fresh, float(fresh.norm()), min(least, step.curvature)
    if norm > goal:
        # Half: the residual that is carried along drifts from the true one, which is what is promised.
        step = conjugate_gradients(product, residual, 0.5 * goal / norm, max(0, iterations - count))
        x, count, least = x + step.x, count + step.iterations + 1, min(least, step.curvature)
        norm = float((b - product(x)).norm())
    return Solution(x, norm / size if size > 0 else 0.0, count, least)


def spectral_norm(product: Callable[[Tensor], Tensor], start: Tensor, iterations: int = 30) -> tuple[float, float]:
    """Return the largest and smallest eigenvalue of a symmetric A, by Lanczos from ``start`` (d,), orthogonalised.

    Both are Ritz values: they lie inside the spectrum, so the largest is a lower bound that grows with ``iterations``.
    """
    basis = [start / start.norm()]
    diagonal: list[float] = []
    off: list[float] = []
    for _ in range(min(iterations, start.numel())):
        image = product(basis[-1])
        diagonal.append(float(basis[-1].dot(image)))
        matrix = torch.stack(basis)
        for _ in range(2):  # twice is enough to stay orthogonal
            image = image - matrix.T @ (matrix @ image)
        length = float(image.norm())
        if length <= 1e-10 * max(abs(value) for value in diagonal):
            break
        off.append(length)
        basis.append(image / length)
    steps = len(diagonal)
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    sides = torch.tensor(off[: steps - 1], dtype=torch.float64)
    tridiagonal += torch.diag(sides, 1) + torch.diag(sides, -1)
    values = torch.linalg.eigvalsh(tridiagonal)
    return float(values[-1]), float(values[0])


def ritz_pairs(
    product: Callable[[Tensor], Tensor],
    dimension: int,
    rank: int,
    generator: torch.Generator,
    *,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Return Ritz values (rank,), rising, and orthonormal Ritz vectors (rank, d) of a symmetric A, by Lanczos.

    Both are in float64, and A's own eigenpairs where ``rank`` is d. ``product`` is v (d,) -> A v (d,). Each vector is
    orthogonalised twice against all before it. Where A leads to no new direction, the next one is drawn.
    """
    basis = torch.zeros(rank, dimension, dtype=torch.float64, device=device)
    projected = torch.zeros(rank, rank, dtype=torch.float64, device=device)
    towards, scale = torch.zeros(dimension, dtype=torch.float64, device=device), 0.0
    for place in range(rank):
        before = basis[:place]
        vector, length = _apart(towards, before)
        if length <= 1e-10 * scale or length == 0.0:
            drawn = torch.randn(dimension, generator=generator, dtype=torch.float64).to(device)
            vector, length = _apart(drawn, before)
        basis[place] = vector / length
        towards = product(basis[place])
        along = basis[: place + 1] @ towards
        projected[: place + 1, place] = projected[place, : place + 1] = along
        scale = max(scale, float(towards.norm()))
    values, turn = torch.linalg.eigh(projected)
    return values, turn.T @ basis


def _apart(vector: Tensor, basis: Tensor) -> tuple[Tensor, float]:
    """Return the part of ``vector`` that is orthogonal to the rows of ``basis``, and its norm."""
    for _ in range(2):  # twice is enough to stay orthogonal
        vector = vector - basis.T @ (basis @ vector)
    return vector, float(vector.norm())


def _in_chunks(product: Callable[[Tensor], Tensor], size: int) -> Products:
    """Return the product for rows (k, d), ``size`` of them at a time."""
    together = vmap(product, chunk_size=size)

    def products(vectors: Tensor) -> Tensor:
        return together(vectors).detach() if len(vectors) else vectors

    return products


def _gauss_newton_product(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    def forward(u: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels of attention have no forward derivative
            return problem.outputs(u, x)

    def output_gradient(outputs: Tensor) -> Tensor:
        slope: Tensor = grad(lambda z: problem.losses(z, y).mean())(outputs)
        return slope

    outputs, pull = forward(w).detach(), _pullback(forward, w)
    return lambda v: pull(_push(output_gradient, outputs, _push(forward, w, v)))


def _pullback(function: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[Tensor], Tensor]:
    result = cast(tuple[Tensor, Callable[[Tensor], tuple[Tensor]]], vjp(function, at))
    return lambda cotangent: result[1](cotangent)[0]


def _push(function: Callable[[Tensor], Tensor], at: Tensor, tangent: Tensor) -> Tensor:
    return cast(tuple[Tensor, Tensor], jvp(function, (at,), (tangent,)))[1]


def _elements(out: object) -> int:
    return out.numel() if isinstance(out, Tensor) else 0
