"""Draw means with their deviations as SVG, one line a method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, LINE, TOP, BOTTOM = 720, 150, 70, 22, 8, 40


@dataclass(frozen=True)
class Dot:
    """A mean with its deviation, and the name at the left of its line."""

    name: str
    mean: float
    deviation: float


def dots(marks: Sequence[Dot], ends: Mapping[str, float | None], says: str) -> str:
    """Return the drawing. ``ends`` are values with a vertical line, by name; ``says`` is the text alternative."""
    low, high = _limits(marks)
    height = TOP + LINE * len(marks) + BOTTOM
    drawn = [_axis(low, high, height)]
    drawn += [_end(name, value, low, high, height) for name, value in ends.items() if value is not None]
    drawn.append(_legend([name for name, value in ends.items() if value is not None], height - 4))
    drawn += [_line(mark, TOP + LINE * (place + 0.5), low, high) for place, mark in enumerate(marks)]
    title = escape(f"{says}. " + "; ".join(f"{mark.name}: {mark.mean:.3g}" for mark in marks))
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img"><title>{title}</title>{"".join(drawn)}</svg>'


def ticks(low: float, high: float) -> list[float]:
    """Return about five round values from ``low`` to ``high``: whole multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _limits(marks: Sequence[Dot]) -> tuple[float, float]:
    low = min(0.0, *(mark.mean - mark.deviation for mark in marks))
    high = max(1.0, *(mark.mean + mark.deviation for mark in marks))
    return low, high


def _x(value: float, low: float, high: float) -> float:
    return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)


def _axis(low: float, high: float, height: float) -> str:
    base = height - BOTTOM
    marks = "".join(
        f'<text class="quiet" x="{_x(value, low, high)}" y="{base + 14}" text-anchor="middle">{value:g}</text>'
        for value in ticks(low, high)
    )
    return f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>{marks}'


def _end(name: str, value: float, low: float, high: float, height: float) -> str:
    x = _x(value, low, high)
    return f'<line class="{name}" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - BOTTOM}"/>'


def _legend(names: Sequence[str], y: float) -> str:
    """Say which line is which, under the axis, where no value can cover it."""
    return "".join(
        f'<line class="{name}" x1="{LEFT + 130 * place}" x2="{LEFT + 130 * place + 24}" y1="{y - 4}" y2="{y - 4}"/>'
        f'<text class="quiet" x="{LEFT + 130 * place + 30}" y="{y}">{escape(name)}</text>'
        for place, name in enumerate(names)
    )


def _line(mark: Dot, y: float, low: float, high: float) -> str:
    ends = [_x(mark.mean + side * mark.deviation, low, high) for side in (-1, 1)]
    x = _x(mark.mean, low, high)
    return (
        f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(mark.name)}</text>'
        f'<line class="spread" x1="{ends[0]}" x2="{ends[1]}" y1="{y}" y2="{y}"/>'
        f'<circle class="dot" cx="{x}" cy="{y}" r="4"/>'
        f'<text class="quiet" x="{WIDTH - RIGHT + 8}" y="{y + 4}">{mark.mean:.3g}</text>'
    )
