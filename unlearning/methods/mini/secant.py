"""Hessian products from differences of gradients: the limited-memory BFGS matrix, in compact form."""

from __future__ import annotations

import torch
from torch import Tensor


def secant_product(moves: Tensor, changes: Tensor, v: Tensor) -> Tensor | None:
    """Return B v, (d,), with B the BFGS approximation of the Hessian that has seen m pairs, oldest first.

    ``moves`` (m, d) holds the weight differences s_j, ``changes`` (m, d) the gradient differences y_j of one and the
    same function. B starts as noise_std I, noise_std = s'y / s's of the newest pair, and is evaluated without forming
    it: B = noise_std I - [noise_std S, Y] M^-1 [noise_std S, Y]', M = [[noise_std S'S, L], [L', -D]], where L and D are
    the strictly lower and the diagonal part of S'Y (Byrd, Nocedal, Schnabel 1994, theorem 2.3; used the same way by
    DeltaGrad).

    A pair without positive curvature (s'y <= 0: B would not be positive definite) is left out. Returns None when no
    pair is left: the history does not show the curvature.
    """
    curved = (moves * changes).sum(dim=1) > torch.finfo(v.dtype).eps * moves.norm(dim=1) * changes.norm(dim=1)
    if not bool(curved.any()):
        return None
    # The middle matrix is tiny and can be badly scaled: float64 costs nothing here.
    s, y = moves[curved].double(), changes[curved].double()
    inner = s @ y.T
    noise_std = inner[-1, -1] / (s[-1] @ s[-1])
    below = inner.tril(-1)
    middle = torch.cat(
        [torch.cat([noise_std * (s @ s.T), below], dim=1), torch.cat([below.T, -torch.diag(inner.diagonal())], dim=1)]
    )
    frame = torch.cat([noise_std * s, y])
    wide = v.double()
    product: Tensor = noise_std * wide - frame.T @ torch.linalg.solve(middle, frame @ wide)
    return product.to(v.dtype)
