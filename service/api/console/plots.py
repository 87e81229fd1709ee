"""Drawings as SVG geometry: a gauge's arc, and a series as steps or as a line. The templates draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]


@dataclass(frozen=True)
class Plot:
    """A series in a box of ``width`` by ``height``: a polyline's points, and the last point for a mark."""

    width: int
    height: int
    line: str
    last: Point


def arc(share: float, radius: float = 42, centre: float = 50) -> str:
    """Draw a share (0 to 1) of a half ring, from the left over the top, as an SVG path."""
    angle = math.pi * (1 - min(max(share, 0.0), 1.0))
    x, y = centre + radius * math.cos(angle), centre - radius * math.sin(angle)
    return f"M {centre - radius:g} {centre:g} A {radius:g} {radius:g} 0 0 1 {x:.2f} {y:.2f}"


def steps(points: Sequence[Point], top: float, end: float, width: int = 560, height: int = 120) -> Plot | None:
    """Draw a quantity that changes at each x and is constant between, up to ``end``, on a scale from 0 to ``top``."""
    if not points:
        return None
    corners = [points[0]]
    for (_, before), (x, y) in pairwise(points):
        corners += [(x, before), (x, y)]
    corners.append((max(end, points[-1][0]), points[-1][1]))
    return _scaled(corners, (0.0, top), width, height)


def line(points: Sequence[Point], low: float, high: float, width: int = 560, height: int = 120) -> Plot | None:
    """Return the plot of values joined by a line, on a scale from ``low`` to ``high``. None: there are fewer than
    two.
    """
    return _scaled(points, (low, high), width, height) if len(points) > 1 else None


def _scaled(points: Sequence[Point], scale: Point, width: int, height: int) -> Plot:
    start, end = points[0][0], points[-1][0]
    low, high = scale

    def place(x: float, y: float) -> Point:
        across = (x - start) / (end - start) if end > start else 1.0
        up = (y - low) / (high - low) if high > low else 0.5
        return round(4 + across * (width - 8), 2), round(height - 4 - min(max(up, 0.0), 1.0) * (height - 8), 2)

    placed = [place(*point) for point in points]
    return Plot(width, height, " ".join(f"{x:g},{y:g}" for x, y in placed), placed[-1])
