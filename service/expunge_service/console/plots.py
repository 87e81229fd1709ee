"""Drawings as SVG geometry: a gauge's arc, series as steps or lines, and bars, each with axes. Templates draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]
WIDTH, HEIGHT = 560, 178
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 10, 34
"""the margins, in which the labels are written"""


@dataclass(frozen=True)
class Tick:
    """A label on an axis, at ``place`` in the drawing's units."""

    place: float
    label: str


@dataclass(frozen=True)
class Plot:
    """A drawing of ``width`` by ``height``. ``says`` is its text alternative, in words.

    ``lines`` are polylines' points, ``marks`` points to set a dot on, ``bars`` boxes (x, y, width, height).
    """

    says: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    lines: tuple[str, ...] = ()
    marks: tuple[Point, ...] = ()
    bars: tuple[tuple[float, float, float, float], ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True)
class Frame:
    """The values at the edges of a drawing, and where a value is placed in it."""

    start: float
    end: float
    low: float
    high: float

    def x(self, value: float) -> float:
        share = (value - self.start) / (self.end - self.start) if self.end > self.start else 1.0
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM), 2)

    def line(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self.x(x):g},{self.y(y):g}" for x, y in points)

    def mark(self, point: Point) -> Point:
        return self.x(point[0]), self.y(point[1])

    def bar(self, left: float, right: float, value: float) -> tuple[float, float, float, float]:
        """Return the box from ``left`` to ``right`` that is ``value`` high, with a gap to the next."""
        x, y = self.x(left), self.y(value)
        return x + 1, y, max(1.0, round(self.x(right) - x - 2, 2)), round(self.y(self.low) - y, 2)


def arc(share: float, radius: float = 42, centre: float = 50) -> str:
    """Draw a share (0 to 1) of a half ring, from the left over the top, as an SVG path."""
    angle = math.pi * (1 - min(max(share, 0.0), 1.0))
    x, y = centre + radius * math.cos(angle), centre - radius * math.sin(angle)
    return f"M {centre - radius:g} {centre:g} A {radius:g} {radius:g} 0 0 1 {x:.2f} {y:.2f}"


def steps(points: Sequence[Point], end: float) -> list[Point]:
    """Return the corners of a quantity that changes at each x and is constant between, up to ``end``."""
    corners = list(points[:1])
    for (_, before), (x, y) in pairwise(points):
        corners += [(x, before), (x, y)]
    return [*corners, (max(end, points[-1][0]), points[-1][1])] if points else []


def spread(values: Sequence[float], most: int) -> list[float]:
    """Return at most ``most`` of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    places = {round(place * (len(values) - 1) / (most - 1)) for place in range(most)}
    return [values[place] for place in sorted(places)]


def whole_steps(high: int, most: int = 4) -> list[int]:
    """Return whole numbers from 0 up to at least ``high``, in equal steps of 1, 2 or 5 times a power of ten."""
    step = next(
        factor * 10**power for power in range(20) for factor in (1, 2, 5) if factor * 10**power * most >= max(high, 1)
    )
    return list(range(0, step * math.ceil(max(high, 1) / step) + 1, step))
