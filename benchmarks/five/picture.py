"""Draw the distance left against the CPU seconds of a deletion: a panel for each setting, both scales logarithmic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.five.entrants import NOTHING, RETRAINING
from benchmarks.five.table import TOGETHER

PANEL, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 500, 400, 60, 150, 48, 52
LABEL = 16
"""least pixels between the lines of two labels"""
MARGIN = 0.2
"""of a decade, around all values"""
STYLE = (
    "text{fill:#0f172a}.quiet{fill:#475569;font-size:12px}.name{font-weight:650}.axis{stroke:#334155}"
    ".grid{stroke:#e2e8f0}.retraining{stroke:#2f7d5d;stroke-dasharray:5 4}.nothing{stroke:#b4532f;stroke-dasharray:5 4}"
    ".served{fill:#1f6b4d}.published{fill:#fff;stroke:#1f6b4d;stroke-width:2}.other{fill:#b4532f}.spread{stroke:#94a3b8}"
    ".link{stroke:#cbd5e1}"
)


@dataclass(frozen=True)
class Dot:
    """An entrant's mean distance left and CPU seconds."""

    name: str
    seconds: float
    distance: float

    @property
    def kind(self) -> str:
        """Return the class of its mark: filled where it is served, open where it is as published alone."""
        return "other" if ", " not in self.name else "served" if self.name.endswith("served") else "published"


@dataclass(frozen=True)
class Panel:
    """One setting's marks, with the CPU seconds of a retraining."""

    title: str
    dots: tuple[Dot, ...]
    retraining: float


def picture(tables: Sequence[dict[str, Any]]) -> str:
    """Return the drawing of the largest share that leaves together. ``tables``: what ``results.read`` returns."""
    panels = [_panel(table) for table in tables]
    width = PANEL * max(1, len(panels))
    values = [dot.distance for panel in panels for dot in panel.dots]
    seconds = [each for panel in panels for each in (panel.retraining, *(dot.seconds for dot in panel.dots))]
    x, y = _Scale.of(seconds, LEFT, PANEL - RIGHT), _Scale.of([*values, 1.0], HEIGHT - BOTTOM, TOP)
    drawn = "".join(
        f'<g transform="translate({PANEL * place} 0)">{_drawn(panel, x, y)}</g>' for place, panel in enumerate(panels)
    )
    says = escape(". ".join(_said(panel) for panel in panels), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="{says}">\n<style>{STYLE}</style>\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>\n{drawn}\n</svg>\n'
    )


def _panel(table: dict[str, Any]) -> Panel:
    case = max((case for case in table["cases"] if case["manner"] == TOGETHER), key=lambda case: case["share"])
    means = {
        row["name"]: {name: statistics.mean(figures) for name, figures in row["figures"].items()}
        for row in case["rows"]
        if not row["refused"]
    }
    dots = tuple(
        Dot(name, figures["seconds"], figures["distance left"])
        for name, figures in means.items()
        if name not in (NOTHING, RETRAINING)
    )
    title = f"{table['data']}, {table['model']}: {case['share']:.0%} leave"
    return Panel(title, dots, means[RETRAINING]["seconds"])


@dataclass(frozen=True)
class _Scale:
    """Decimal logarithms from ``low`` to ``high``, onto pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> _Scale:
        logs = [math.log10(value) for value in values if value > 0.0]
        return cls(min(logs) - MARGIN, max(logs) + MARGIN, start, end)

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low) if value > 0.0 else 0.0
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]


def _drawn(panel: Panel, x: _Scale, y: _Scale) -> str:
    base, right = HEIGHT - BOTTOM, PANEL - RIGHT
    across = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y.at(tick)}" y2="{y.at(tick)}"/>'
        f'<text class="quiet" x="{LEFT - 6}" y="{y.at(tick) + 4}" text-anchor="end">{tick:g}</text>'
        for tick in y.ticks()
    )
    along = "".join(
        f'<text class="quiet" x="{x.at(tick)}" y="{base + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in x.ticks()
    )
    return (
        f'<text class="name" x="{LEFT}" y="20">{escape(panel.title)}</text>'
        f'<text class="quiet" x="{LEFT}" y="36">distance left (0: as retrained, 1: as before)</text>'
        f"{across}{along}"
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>'
        f'<text class="quiet" x="{(LEFT + right) / 2}" y="{base + 34}" text-anchor="middle">CPU s of a deletion</text>'
        + _lines(panel, x, y)
        + _marks(panel.dots, x, y)
    )


def _lines(panel: Panel, x: _Scale, y: _Scale) -> str:
    base, right = HEIGHT - BOTTOM, PANEL - RIGHT
    one, retraining = y.at(1.0), x.at(panel.retraining)
    return (
        f'<line class="nothing" x1="{LEFT}" x2="{right}" y1="{one}" y2="{one}"/>'
        f'<text class="quiet" x="{LEFT + 4}" y="{one + 14}">doing nothing</text>'
        f'<line class="retraining" x1="{retraining}" x2="{retraining}" y1="{TOP}" y2="{base}"/>'
        f'<text class="quiet" x="{retraining - 4}" y="{base - 6}" text-anchor="end">a retraining</text>'
    )


def _marks(dots: Sequence[Dot], x: _Scale, y: _Scale) -> str:
    """Draw the dots, each with a line to its label at the right, where labels are set apart from each other."""
    right, drawn, height = PANEL - RIGHT, [], float(TOP - LABEL)
    order = sorted(dots, key=lambda dot: (y.at(dot.distance), -dot.seconds))
    for dot in order:
        height = max(height + LABEL, y.at(dot.distance))
        left, top = x.at(dot.seconds), y.at(dot.distance)
        drawn.append(
            f'<line class="link" x1="{left}" x2="{right + 6}" y1="{top}" y2="{height}"/>'
            f'<circle class="{dot.kind}" cx="{left}" cy="{top}" r="4.5"/>'
            f'<text class="quiet" x="{right + 10}" y="{height + 4}">{escape(_short(dot.name))}</text>'
        )
    return "".join(drawn)


def _short(name: str) -> str:
    return name.replace(", as published and served", "").replace(", as", "")


def _said(panel: Panel) -> str:
    marks = "; ".join(f"{dot.name}: {dot.distance:.2g} left in {dot.seconds:.2g} s" for dot in panel.dots)
    return f"{panel.title}. A retraining takes {panel.retraining:.2g} s; {marks}"
