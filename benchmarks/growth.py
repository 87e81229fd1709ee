"""Draw what grows with requests, models and people from the published rows of ``history``: a panel for each question.

``python -m benchmarks.growth`` writes docs/growth.svg again. A panel has how many there are along the bottom, by
decades, and at the left how many times the CPU it takes of that with the fewest. The dashed line is the limit.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PUBLISHED, PICTURE = ROOT / "benchmarks" / "results" / "bench.json", ROOT / "docs" / "growth.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 210, 190, 34, 16, 44, 44
COLUMNS = 5
ROOM = 1.15
"""of the height that a panel's greatest value or limit takes, so that no line lies on its edge"""
ROW = re.compile(r"(?P<question>.+) (?:after|in|among) (?:[\d,]+) (?P<of>finished requests|models|people) / ")
STYLE = (
    "text{fill:#0f172a}.quiet{fill:#475569;font-size:12px}.name{font-weight:650}.axis{stroke:#334155}"
    ".limit{stroke:#b4532f;stroke-dasharray:5 4}.cost{fill:none;stroke:#1f6b4d;stroke-width:2}.met{fill:#1f6b4d}"
    ".missed{fill:#b4532f}"
)


@dataclass(frozen=True)
class Panel:
    """A question and what there may be many of. ``costs``: by how many there are, the CPU over that of the fewest."""

    question: str
    of: str
    limit: float
    costs: Mapping[int, float]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Panel | None:
        """Return the panel of a published row; None: the row compares nothing that grows."""
        named = ROW.match(row["name"])
        if row["benchmark"] != "history" or named is None:
            return None
        seconds = {int(count): statistics.median(costs) for count, costs in row["sides"].items() if count.isdigit()}
        fewest = seconds[min(seconds)]
        costs = {count: seconds[count] / fewest for count in sorted(seconds)}
        return cls(named["question"], named["of"], float(row["target"].removeprefix("<= ")), costs)

    def x(self, count: int) -> float:
        low, high = (math.log10(end) for end in (min(self.costs), max(self.costs)))
        return round(LEFT + (math.log10(count) - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, cost: float) -> float:
        most = ROOM * max(self.limit, *self.costs.values())
        return round(HEIGHT - BOTTOM - cost / most * (HEIGHT - BOTTOM - TOP), 1)


def picture(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the drawing of all rows that compare what grows, ``COLUMNS`` in a line."""
    panels = [panel for row in rows if (panel := Panel.of_row(row)) is not None]
    drawn = "\n".join(
        f'<g transform="translate({WIDTH * (place % COLUMNS)} {HEIGHT * (place // COLUMNS)})">{_drawn(panel)}</g>'
        for place, panel in enumerate(panels)
    )
    width, height = WIDTH * COLUMNS, HEIGHT * math.ceil(len(panels) / COLUMNS)
    said = escape(". ".join(map(_said, panels)), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="{said}">\n<style>{STYLE}</style>\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{drawn}\n</svg>\n'
    )


def _drawn(panel: Panel) -> str:
    base, right, limit = HEIGHT - BOTTOM, WIDTH - RIGHT, panel.y(panel.limit)
    points = [(panel.x(count), panel.y(cost)) for count, cost in panel.costs.items()]
    dots = "".join(
        f'<circle class="{"met" if cost <= panel.limit else "missed"}" cx="{x}" cy="{y}" r="3.5"/>'
        for (x, y), cost in zip(points, panel.costs.values(), strict=True)
    )
    along = "".join(
        f'<text class="quiet" x="{panel.x(count)}" y="{base + 16}" text-anchor="middle">{_short(count)}</text>'
        for count in panel.costs
    )
    last = panel.costs[max(panel.costs)]
    return (
        f'<text class="name" x="{LEFT}" y="18">{escape(panel.question)}</text>'
        f'<text class="quiet" x="{LEFT}" y="34">{last:.2f} times at {_short(max(panel.costs))}</text>'
        f'<line class="limit" x1="{LEFT}" x2="{right}" y1="{limit}" y2="{limit}"/>'
        f'<text class="quiet" x="{LEFT - 6}" y="{limit + 4}" text-anchor="end">{panel.limit:g}</text>'
        f'<text class="quiet" x="{LEFT - 6}" y="{base + 4}" text-anchor="end">0</text>'
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>{along}'
        f'<text class="quiet" x="{(LEFT + right) / 2}" y="{base + 32}" text-anchor="middle">{panel.of}</text>'
        f'<polyline class="cost" points="{" ".join(f"{x},{y}" for x, y in points)}"/>{dots}'
    )


def _short(count: int) -> str:
    """Write 1,000 as 1k and 1,000,000 as 1M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:g}{letter}"
    return str(count)


def _said(panel: Panel) -> str:
    figures = ", ".join(f"{cost:.2f} at {count:,}" for count, cost in panel.costs.items())
    return f"{panel.question}, {panel.of}: {figures}; limit {panel.limit:g}"


if __name__ == "__main__":
    PICTURE.write_text(picture(json.loads(PUBLISHED.read_text())))
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}\n")
