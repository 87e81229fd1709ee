"""The picture of what grows is drawn from the published rows, and shows where a limit is missed."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

from benchmarks.growth import PICTURE, PUBLISHED, ROOT, Panel, picture

ROWS: list[dict[str, Any]] = json.loads(PUBLISHED.read_text())


def row(name: str, costs: dict[str, Any], target: str = "<= 1.2") -> dict[str, Any]:
    return {"benchmark": "history", "name": name, "target": target, "sides": costs}


def test_the_picture_is_made_from_the_published_rows_and_shown() -> None:
    assert PICTURE.read_text() == picture(ROWS), "run python -m benchmarks.growth"
    assert "](growth.svg)" in (ROOT / "docs" / "results.md").read_text()


def test_every_row_of_what_grows_is_drawn_to_its_greatest_number() -> None:
    panels = [panel for each in ROWS if (panel := Panel.of_row(each)) is not None]
    assert len(panels) == sum(each["benchmark"] == "history" for each in ROWS)
    most = {panel.of: max(panel.costs) for panel in panels}
    assert most == {"finished requests": 1_000_000, "models": 1000, "people": 1_000_000}
    assert min(len(panel.costs) for panel in panels) >= 4


def test_a_cost_above_its_limit_lies_above_the_line_and_is_marked() -> None:
    costs = {"1": [1.0, 9.0, 1.0], "10": [1.1], "100": [2.0], "reason": "why"}
    drawn = picture([row("a page in 100 models / in 1, SQLite", costs), row("who is touched: 5 people", {"1": [1.0]})])
    root = ElementTree.fromstring(drawn)
    named = {"svg": "http://www.w3.org/2000/svg"}
    heights = [float(dot.attrib["cy"]) for dot in root.iterfind(".//svg:circle", named)]
    (limit,) = (float(line.attrib["y1"]) for line in root.iterfind(".//svg:line[@class='limit']", named))
    assert [height < limit for height in heights] == [False, False, True]
    assert re.findall(r'circle class="(\w+)"', drawn) == ["met", "met", "missed"]
    assert root.attrib["aria-label"] == "a page, models: 1.00 at 1, 1.10 at 10, 2.00 at 100; limit 1.2"
