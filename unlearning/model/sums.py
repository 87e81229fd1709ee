"""The sum of vectors in float64, in spans that are given back one by one: a large model's sum is never held twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

SPAN = 1 << 22
"""numbers; 32 MiB in float64, which the C library gives back to the system as soon as they are dropped"""
STEP = 1 << 18
"""numbers that are rounded at once"""


@runtime_checkable
class InPieces(Protocol):
    """Vectors by holder that can be read in pieces; a piece says nothing until the whole pass has ended well."""

    def pieces(self) -> Iterator[tuple[str, int, Tensor]]:
        """The holder, where the piece begins in their vector, and its numbers; in order of holder, then of place."""


class Total:
    """A sum (d,) of vectors, float64 on ``device``, added to in the order of the calls."""

    def __init__(self, dimension: int, device: torch.device) -> None:
        self._spans = [
            torch.zeros(min(SPAN, dimension - start), dtype=torch.float64, device=device)
            for start in range(0, dimension, SPAN)
        ]

    def add(self, start: int, part: Tensor) -> None:
        """Add ``part`` (k,) to the numbers from ``start`` on."""
        while len(part):
            span, offset = divmod(start, SPAN)
            room = self._spans[span][offset : offset + len(part)]
            room += part[: len(room)]
            start, part = start + len(room), part[len(room) :]

    def norm(self) -> float:
        """The Euclidean norm."""
        return math.hypot(*(float(span.norm()) for span in self._spans))

    def whole(self) -> Tensor:
        """The sum as one tensor (d,)."""
        return self._spans[0] if len(self._spans) == 1 else torch.cat(self._spans)

    def onto(self, weights: Tensor) -> Tensor:
        """``weights`` (d,) plus the sum, which is rounded to their dtype first. The sum is used up by it."""
        moved = torch.empty_like(weights)
        start = 0
        while self._spans:
            span = self._spans.pop(0)
            for at in range(0, len(span), STEP):
                part = span[at : at + STEP]
                stop = start + len(part)
                torch.add(weights[start:stop], part.to(weights), out=moved[start:stop])
                start = stop
        return moved


def total_of(vectors: Mapping[str, Tensor], holders: Iterable[str], like: Tensor) -> Total:
    """The sum of these holders' vectors, one at a time in the order of ``vectors``; as long as ``like``, and there."""
    chosen = frozenset(holders)
    total = Total(like.numel(), like.device)
    for holder, start, part in _pieces(vectors):
        if holder in chosen:
            total.add(start, part)
    return total


def distance(a: Tensor, b: Tensor) -> float:
    """The Euclidean distance of two vectors (d,), without a third one."""
    starts = range(0, len(a), STEP)
    return math.hypot(*(float((a[at : at + STEP] - b[at : at + STEP]).norm()) for at in starts))


def _pieces(vectors: Mapping[str, Tensor]) -> Iterator[tuple[str, int, Tensor]]:
    if isinstance(vectors, InPieces):
        return vectors.pieces()
    return ((holder, 0, vector) for holder, vector in vectors.items())
