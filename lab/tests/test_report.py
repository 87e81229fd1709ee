"""The page about an evaluation, and the table of figures: complete, self-contained, and no claim beyond the numbers."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from expunge_lab.drawing import Dot, dots, ticks
from expunge_lab.experiment.metrics import Row
from expunge_lab.figures import FIGURES, cell, lines, shown
from expunge_lab.report import About, page, write

ROOT = Path(__file__).parents[2]
ABOUT = About("sick <notes>", "expunge lab evaluate --recipe 'a & b'", "2026-11-22", ("scrub",), 2)


def row(method: str, seed: int = 0, **changes) -> Row:
    return Row(method, 0.05, seed, 100, 5, "renormalised", **changes)


ROWS = (
    row("untouched", distance_left=1.0, lira_auc=0.83, test_accuracy=0.9, claim={"guarantee": "none"}),
    row("retrain", distance_left=0.0, lira_auc=0.49, test_accuracy=0.9, claim={"guarantee": "exact"}),
    row("newton", distance_left=0.01, lira_auc=0.5, test_accuracy=0.9, claim={"guarantee": "proved"}),
    row("newton", 1, distance_left=0.03, lira_auc=0.5, test_accuracy=0.9, claim={"guarantee": "proved"}),
    row("scrub", distance_left=12.0, lira_auc=0.7, test_accuracy=0.8, claim={"guarantee": "none"}),
    row("rewind", refused="It <cannot>."),
)


class Elements(HTMLParser):
    """Every element with its attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def html() -> str:
    return page(ROWS, ABOUT)


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    elements = Elements(html)
    assert not {tag for tag, _ in elements.found} & {"script", "link", "img", "iframe", "object", "embed", "form"}
    assert not {name for _, given in elements.found for name in given} & {"src", "href", "srcset", "onload", "style"}
    assert not re.search(r"url\(|@import|https?://", html)


def test_the_page_is_light_dark_and_printed(html: str) -> None:
    for needed in ("color-scheme: light dark", "prefers-color-scheme: dark", "@media print", 'lang="en"', "viewport"):
        assert needed in html


def test_what_a_user_wrote_is_text(html: str) -> None:
    text = Elements(html).text
    assert "sick <notes>" in text and "'a & b'" in text and "It <cannot>." in text
    assert "<notes>" not in html and "<cannot>" not in html


def test_the_words_are_the_numbers(html: str) -> None:
    text = Elements(html).text
    assert "newton (5 of 100 samples forgotten) left 2.0% of the way to a real retraining." in text
    assert "scores 0.5, 0.83 where nothing is done, 0.49 after retraining" in text
    assert "scrub (5 of 100 samples forgotten) left 12 times the way" in text
    assert "rewind (5 of 100 samples forgotten) refused this model." in text
    assert text.count("is not offered as a method") == 1 and "scrub (baseline)" in text
    assert "A measurement bounds nothing." in text and "No deletion request was read" in text
    assert "0.02 ± 0.01" in text


def test_every_number_says_what_it_counts(html: str) -> None:
    text = Elements(html).text
    figures = shown(ROWS)
    assert [each.heading for each in figures] == ["distance left", "TA", "LiRA"]
    assert all(text.count(each.heading) >= 2 and each.counts in text for each in figures)


def test_each_drawing_is_well_formed_and_has_its_numbers_in_words(html: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(drawings) == 3
    for drawing in drawings:
        tree = ElementTree.fromstring(drawing)
        assert tree.get("role") == "img"
        assert "newton: " in tree.find("title").text and "scrub: " in tree.find("title").text


def test_a_mean_is_drawn_where_it_lies() -> None:
    tree = ElementTree.fromstring(dots([Dot("a", 0.0, 0.0), Dot("b", 0.5, 0.1), Dot("c", 1.0, 0.0)], {}, "x"))
    left, middle, right = (float(circle.get("cx")) for circle in tree.iter("circle"))
    assert middle == pytest.approx((left + right) / 2, abs=0.1)
    spreads = [
        (float(line.get("x1")), float(line.get("x2"))) for line in tree.iter("line") if line.get("class") == "spread"
    ]
    assert spreads[1][1] - spreads[1][0] == pytest.approx(0.2 * (right - left), abs=0.2)
    outside = ElementTree.fromstring(dots([Dot("a", -40.0, 2.0), Dot("b", 3000.0, 1.0)], {"retrained": 0.0}, "x"))
    assert all(0 < float(circle.get("cx")) < 720 for circle in outside.iter("circle"))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.2, 1), (0, 7.4), (0, 12345), (-3, 1)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 3 <= len(found) <= 8 and found == sorted(found)
    assert all(low <= each <= high for each in found)


def test_a_stream_is_drawn_at_its_last_round() -> None:
    rows = [dataclasses.replace(ROWS[2], round=turn, distance_left=turn / 10) for turn in (1, 2, 3)]
    drawing = re.findall(r"<title>(distance left.*?)</title>", page(rows, ABOUT))
    assert len(drawing) == 1 and "newton: 0.3" in drawing[0]


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    write(ROWS, ABOUT, tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_each_figure_is_a_field_and_in_the_documents_table_with_its_source() -> None:
    fields = {each.name for each in dataclasses.fields(Row)}
    documented = {
        line.split("|")[1].strip(): line for line in (ROOT / "docs/measure.md").read_text().splitlines() if "|" in line
    }
    for figure in FIGURES:
        assert figure.field in fields
        assert figure.heading in documented, f"docs/measure.md lacks the column {figure.heading}"
        assert figure.source in documented[figure.heading]


def test_means_are_over_seeds_and_missing_is_a_dash() -> None:
    found = {row.method: cells for row, cells in lines(ROWS, shown(ROWS))}
    assert found["newton"] == ["0.02 ± 0.01", "0.9", "0.5"] and found["rewind"] == ["-", "-", "-"]
    assert cell(None) == "-" and cell((0.5, 0.0)) == "0.5"
