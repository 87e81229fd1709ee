"""Projection to the ball ||w|| <= C, so that the weights lie inside it after rounding too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def norm_of(parts: Sequence[Tensor]) -> float:
    """Return the norm of the weights that ``parts`` make together, computed in float64."""
    return float(torch.stack([part.detach().double().square().sum() for part in parts]).sum().sqrt())


def hold_within(parts: Sequence[Tensor], radius: float | None) -> None:
    """Scale the parts, in place, to a common norm of at most ``radius``; None, or a smaller norm: leave them.

    Two roundings of a coordinate, each of at most eps / 2, could lift the norm above the radius: the factor is smaller
    by 2 eps of the parts' dtype.
    """
    if radius is None:
        return
    norm = norm_of(parts)
    if not norm > radius:
        return
    with torch.no_grad():
        for part in parts:
            part.mul_(radius / norm * (1 - 2 * torch.finfo(part.dtype).eps))
