"""The frame of ``make papers``: verdicts that follow from figures, a page that agrees with its file, each paper run
small.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import data_folders
from benchmarks.papers import __main__, hf, images, page
from benchmarks.papers.row import (
    JUDGED,
    Cost,
    Goal,
    Paper,
    Row,
    Verdict,
    at_least,
    at_most,
    judge,
    not_run,
    row_of,
    within,
)

ROW = Row(
    "table 1",
    "accuracy, %",
    "95",
    (96.0, 95.0, 97.0),
    "",
    at_least(95.0),
    seconds=3.0,
    nothing=94.0,
    retrained=95.5,
)
ERROR = 1 / math.sqrt(3)
"""the standard error of its mean, 96"""


def test_every_paper_is_published_with_the_verdicts_that_follow_from_its_rows() -> None:
    papers = page.read()
    assert tuple(papers) == page.NAMES
    for name, paper in papers.items():
        told = [str(row_of(entry).verdict) for entry in paper["rows"]]
        assert told == [entry["verdict"] for entry in paper["rows"]], name


def test_every_verdict_in_the_file_is_on_a_printed_number_that_a_figure_here_can_tell_something_about() -> None:
    """The conditions written out, beside the rule that the rows use."""
    rows = [row_of(entry) for paper in page.read().values() for entry in paper["rows"]]
    judged = [row for row in rows if row.verdict in JUDGED]
    assert judged
    for row in judged:
        assert row.goal and "no number" not in row.published and re.search(r"\d", row.published), row.place
        assert len(row.ours) >= 3 and row.cost != "seconds", row.place
        mean, number, slack = sum(row.ours) / len(row.ours), row.goal.number, row.goal.slack
        error = math.sqrt(sum((figure - mean) ** 2 for figure in row.ours) / (len(row.ours) - 1) / len(row.ours))
        assert slack == 0 or error < slack, row.place
        limits = {"at most": (-math.inf, number + slack), "at least": (number - slack, math.inf)}
        low, high = limits.get(row.goal.side, (number - slack, number + slack))
        if row.cost is None:
            assert row.retrained is not None and low <= row.retrained <= high, row.place
            assert row.nothing is not None and not low <= row.nothing <= high, row.place
        surely_in = low <= mean - error and mean + error <= high
        surely_out = mean + error < low or high < mean - error
        assert (row.verdict is Verdict.REACHED) == surely_in, row.place
        assert (row.verdict is Verdict.NOT_REACHED) == surely_out, row.place


def test_the_papers_column_has_what_the_papers_print() -> None:
    """R2D's figure 1c prints no noise, HF's figure 2a no number at 50 epochs, SAFE's table 10 no 0."""
    papers = {
        name: {(row["place"], row["measured"]): row for row in paper["rows"]} for name, paper in page.read().items()
    }
    for (place, measured), row in papers["r2d"].items():
        assert not (place.startswith("figure 1c") and measured.startswith("noise"))
        if place.startswith("theorem 3.1"):
            assert (row["published"], row["verdict"]) == ("", "the paper has no number")
    printed = [row["published"] for (place, _), row in papers["safe"].items() if place.startswith("table 10")]
    assert {published.partition("retrained ")[2] for published in printed} == {
        *("99.68 ± 0.04)", "93.34 ± 21.54)", "98.98 ± 0.21)", "93.70 ± 21.61)")
    }
    for (place, measured), row in papers["hf"].items():
        if "50 epochs" in place:
            assert row["published"].startswith("drawn, no number") and row["goal"] is None
        if row["ours"] and not measured.endswith((", NS", ", IJ")) and not measured.startswith("GB"):
            assert 'carried_by="everyone"' in row["differs"], place


def test_a_row_outlives_its_file() -> None:
    assert row_of(ROW.as_json()) == ROW
    assert ROW.shown() == "96 ± 1 (3 seeds)"


@pytest.mark.parametrize(
    ("published", "ours", "goal", "why"),
    [
        ("95", (1.0, 2.0), at_least(95.0), "few"),
        ("95", (1.0, 2.0, 3.0), at_least(95.0), ""),
        ("95", (), at_least(95.0), "a GPU"),
        ("95", (), None, ""),
        ("", (1.0,), at_least(95.0), "why"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(
    published: str, ours: tuple[float, ...], goal: Goal | None, why: str
) -> None:
    with pytest.raises(ValueError, match="table 1"):
        Row("table 1", "accuracy", published, ours, "", goal, why, nothing=0.0, retrained=96.0)


def test_a_mean_is_judged_by_what_it_should_be() -> None:
    assert [at_most(limit).met(2.0) for limit in (2.0, 1.9)] == [True, False]
    assert [at_least(limit).met(2.0) for limit in (2.0, 2.1)] == [True, False]
    assert [within(2.5, slack).met(2.0) for slack in (0.5, 0.4)] == [True, False]
    assert at_most(1.0, 0.5).met(1.5) and at_least(1.0, 0.5).met(0.5)


@pytest.mark.parametrize(
    ("goal", "nothing", "retrained", "verdict"),
    [
        (at_least(95.0), 94.0, 95.5, Verdict.REACHED),
        (at_least(95.0), 94.0, 94.9, Verdict.RETRAINING_MISSES),
        (at_least(95.0), 95.0, 95.5, Verdict.BY_NOTHING_TOO),
        (at_least(95.0), 95.0, 94.9, Verdict.RETRAINING_MISSES),
        (at_least(95.0), None, 95.5, Verdict.NOT_COMPARED),
        (at_least(95.0), 94.0, None, Verdict.NOT_COMPARED),
        (within(96.0, 0.6), 94.0, 95.5, Verdict.REACHED),
        (within(96.0, 0.57), 94.0, 95.5, Verdict.SCATTERED),
        (within(99.0, 0.57), 94.0, 99.0, Verdict.SCATTERED),
        (within(98.0, 0.6), 94.0, 98.0, Verdict.NOT_REACHED),
        (at_most(97.0, 0.5), 98.0, 97.0, Verdict.SCATTERED),
        (at_most(97.0, 0.6), 98.0, 97.0, Verdict.REACHED),
        (at_least(97.0), 94.0, 97.5, Verdict.NOT_REACHED),
    ],
)
def test_a_figure_is_judged_where_it_can_tell_something(
    goal: Goal, nothing: float | None, retrained: float | None, verdict: Verdict
) -> None:
    assert judge(goal, ROW.ours, nothing, retrained) is verdict


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        (1.01, Verdict.REACHED),
        (0.99, Verdict.WITHIN_ERROR),
        (0.0, Verdict.WITHIN_ERROR),
        (-0.99, Verdict.WITHIN_ERROR),
        (-1.01, Verdict.NOT_REACHED),
    ],
)
def test_a_mean_nearer_to_the_limit_than_its_error_is_neither_reached_nor_missed(
    errors: float, verdict: Verdict
) -> None:
    """``errors``: how many standard errors the mean lies inside the limit."""
    assert judge(at_least(96.0 - errors * ERROR), ROW.ours, 0.0, 100.0) is verdict
    assert judge(at_most(96.0 + errors * ERROR), ROW.ours, 100.0, 0.0) is verdict
    assert judge(within(94.0, 2.0 + errors * ERROR), ROW.ours, 100.0, 94.0) is verdict


def test_figures_without_any_scatter_are_judged_by_the_limit_alone() -> None:
    for goal, verdict in ((at_most(1.0), Verdict.REACHED), (at_most(0.999), Verdict.NOT_REACHED)):
        assert judge(goal, (1.0, 1.0, 1.0), 2.0, 0.5) is verdict


@pytest.mark.parametrize(
    ("cost", "verdict"),
    [("ratio", Verdict.REACHED), ("bytes", Verdict.REACHED), ("seconds", Verdict.OTHER_MACHINE)],
)
def test_a_cost_is_compared_with_the_paper_alone_and_seconds_with_nothing(cost: Cost, verdict: Verdict) -> None:
    assert judge(at_least(95.0), ROW.ours, None, None, cost) is verdict


def test_a_figure_by_arithmetic_has_no_verdict() -> None:
    assert judge(at_most(1.0), (0.5,), 2.0, 0.0) is Verdict.ARITHMETIC
    assert judge(at_most(1.0), (0.5,), None, None, "bytes") is Verdict.ARITHMETIC


def test_a_row_without_a_printed_number_or_a_figure_of_ours_has_no_verdict() -> None:
    assert replace(ROW, goal=None).verdict is Verdict.NO_NUMBER
    assert replace(ROW, goal=None, ours=(), why="a GPU").verdict is Verdict.NOT_RUN


def test_the_verdict_on_a_time_has_the_range_of_its_runs() -> None:
    slow = Row("table 7", "share", "0.42", (0.39, 0.37, 0.40), "", at_most(0.42), cost="ratio")
    assert slow.judged() == "reached, by runs from 0.37 to 0.4" and ROW.judged() == "reached"
    assert replace(slow, cost="seconds").judged() == "seconds of another machine"
    text = page.page(page.read())
    for name in ("r2d", "hf", "cns"):
        rows = [row_of(entry) for entry in page.read()[name]["rows"]]
        timed = [row for row in rows if row.cost == "ratio" and row.verdict in JUDGED]
        assert timed and all(f"**{row.judged()}**" in text for row in timed)


def test_the_page_shows_verdicts_and_lists_the_rest_with_its_reason() -> None:
    waiting = not_run("table 9", "accuracy, %", "91", "A GPU.")
    missed = replace(ROW, place="table 2", retrained=94.0)
    words = {"title": "A title", "link": "https://a.b", "promised": "P.", "measured": "M.", "at": "2026-11-22"}
    rows = [missed.as_json(), ROW.as_json(), waiting.as_json()]
    text = page.page(page.read() | {"hf": {**words, "rows": rows}})
    judged, _, rest = text.partition("## A title")[2].partition("Without a verdict:")
    listed, _, not_here = rest.partition("Not run:")
    assert "| table 1 | accuracy, % | 95 | 96 ± 1 (3 seeds) | 95.5 | 94 | **reached** |  | 3 |" in judged
    assert "table 2" not in judged and "table 1 " not in listed
    assert "| table 2 | accuracy, % | 95 | 96 ± 1 (3 seeds) | 94 | 94 | **retraining misses it** |  | 3 |" in listed
    assert "- table 9: accuracy, % (the paper: 91). A GPU." in not_here


def test_named_papers_replace_their_own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "RESULTS", tmp_path / "build" / "papers.json")
    __main__.keep("hf", {"rows": [1]})
    __main__.keep("mini", {"rows": [2]})
    __main__.keep("hf", {"rows": [3]})
    assert __main__.kept() == {"hf": {"rows": [3]}, "mini": {"rows": [2]}}


def test_an_interrupted_run_keeps_its_rows_and_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = replace(ROW, place="table 2")

    def cut(_: object) -> Iterator[Row]:
        yield ROW
        yield second
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "RESULTS", tmp_path / "build" / "papers.json")
    monkeypatch.setattr(page, "PUBLISHED", tmp_path / "papers.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "build" / "papers.md")
    (tmp_path / "papers.json").write_text(json.dumps({name: {"rows": []} for name in page.NAMES}))
    monkeypatch.setattr(hf, "rows", cut)
    monkeypatch.setattr(images, "folder", lambda: tmp_path)
    with pytest.raises(KeyboardInterrupt):
        __main__.main(["hf"])
    assert __main__.kept()["hf"]["rows"] == [ROW.as_json(), second.as_json()]
    assert __main__.main(["--publish"]) == 0
    assert "hf: interrupted after 2 rows, not shown" in capsys.readouterr().out
    assert page.read()["hf"]["rows"] == []
    monkeypatch.setattr(hf, "rows", lambda _: iter([ROW]))
    assert __main__.main(["hf", "--publish"]) == 0
    assert page.read()["hf"]["rows"] == [ROW.as_json()] and "whole" not in page.read()["hf"]


def test_without_its_images_the_command_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "RESULTS", tmp_path / "build" / "papers.json")
    monkeypatch.setenv("EXPUNGE_MNIST", str(tmp_path))
    assert __main__.main(["hf"]) == 2
    said = capsys.readouterr().out
    assert "Set EXPUNGE_MNIST to the folder" in said and str(tmp_path) in said
    beside = tmp_path / "shared" / "data" / "mnist10k"
    beside.mkdir(parents=True)
    for name in (images.PIXELS, images.LABELS):
        (beside / name).touch()
    monkeypatch.delenv("EXPUNGE_MNIST")
    monkeypatch.setattr(data_folders, "__file__", str(tmp_path / "checkout" / "benchmarks" / "data_folders.py"))
    assert images.folder() == beside


def test_a_paper_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["nobody"]) == 2
    assert "unknown: nobody" in capsys.readouterr().out


PRESENT = __main__.present()


@pytest.mark.parametrize("name", [PRESENT[0], *(pytest.param(each, marks=pytest.mark.drill) for each in PRESENT[1:])])
@pytest.mark.usefixtures("one_thread")
def test_each_paper_runs_small(name: str) -> None:
    module: Any = importlib.import_module(f"benchmarks.papers.{name}")
    rows = list(module.rows(module.SMALL))
    assert isinstance(module.PAPER, Paper)
    assert module.PAPER.name == name
    assert any(row.ours for row in rows)
    assert len({(row.place, row.measured) for row in rows}) == len(rows)
    for row in rows:
        beside = row.cost or len(row.ours) < 3 or "in the ball and without it" in row.place
        assert row.goal is None or beside or None not in (row.nothing, row.retrained), row.place
