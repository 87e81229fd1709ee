"""The frame of ``make papers``: verdicts that follow from figures, a page that agrees with its file, each paper run
small.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import __main__, hf, images, page
from benchmarks.papers.row import Goal, Paper, Row, Verdict, at_least, at_most, not_run, row_of, within

ROW = Row("table 1", "accuracy, %", "95", (96.0, 95.0, 97.0), "", at_least(95.0), seconds=3.0, nothing=94.0)


def test_every_paper_is_published_with_the_verdicts_that_follow_from_its_rows() -> None:
    papers = page.read()
    assert tuple(papers) == page.NAMES
    for name, paper in papers.items():
        told = [str(row_of(entry).verdict) for entry in paper["rows"]]
        assert told == [entry["verdict"] for entry in paper["rows"]], name


def test_what_the_file_calls_reached_is_a_number_of_the_paper_that_doing_nothing_misses() -> None:
    rows = [row_of(entry) for paper in page.read().values() for entry in paper["rows"]]
    reached = [row for row in rows if row.verdict is Verdict.REACHED]
    assert len(reached) == 8
    for row in reached:
        assert row.goal and "no number" not in row.published
        assert row.cost or (row.nothing is not None and not row.goal.met(row.nothing)), row.place
        assert re.search(r"\d", row.published), row.place


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
    assert [each.partition("retrained ")[2] for each in printed] == [
        *("99.68 ± 0.04)", "93.34 ± 21.54)", "98.98 ± 0.21)", "93.70 ± 21.61)")
    ]
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
        Row("table 1", "accuracy", published, ours, "", goal, why)


def test_a_mean_is_judged_by_what_it_should_be() -> None:
    assert [at_most(limit).met(2.0) for limit in (2.0, 1.9)] == [True, False]
    assert [at_least(limit).met(2.0) for limit in (2.0, 2.1)] == [True, False]
    assert [within(2.5, slack).met(2.0) for slack in (0.5, 0.4)] == [True, False]
    assert at_most(1.0, 0.5).met(1.5) and at_least(1.0, 0.5).met(0.5)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({"nothing": 94.9}, Verdict.REACHED),
        ({"nothing": 95.0}, Verdict.BY_NOTHING_TOO),
        ({"nothing": None}, Verdict.NOT_COMPARED),
        ({"nothing": None, "cost": True}, Verdict.REACHED),
        ({"goal": at_least(96.1), "nothing": 94.0, "why": "it falls"}, Verdict.NOT_REACHED),
        ({"goal": within(96.0, 0.6), "nothing": 94.0}, Verdict.REACHED),
        ({"goal": within(96.0, 0.5), "nothing": 94.0}, Verdict.SCATTERED),
        ({"goal": None}, Verdict.NO_NUMBER),
        ({"goal": None, "ours": (), "why": "a GPU"}, Verdict.NOT_RUN),
    ],
)
def test_a_promise_is_reached_where_doing_nothing_fails(facts: dict[str, Any], verdict: Verdict) -> None:
    assert replace(ROW, **facts).verdict is verdict


def test_the_verdict_on_a_time_has_the_range_of_its_runs() -> None:
    slow = Row("table 7", "seconds", "0.42", (0.39, 0.37, 0.44), "", at_most(0.42), cost=True)
    assert slow.judged() == "reached, by runs from 0.37 to 0.44" and ROW.judged() == "reached"
    for name in ("r2d", "safe", "hf", "cns"):
        timed = [row_of(entry) for entry in page.read()[name]["rows"] if entry["cost"] and len(entry["ours"]) > 1]
        assert timed and all(f"**{row.judged()}**" in page.page(page.read()) for row in timed)


def test_the_page_shows_what_ran_and_lists_what_did_not() -> None:
    waiting = not_run("table 9", "accuracy, %", "91", "A GPU.")
    words = {"title": "A title", "link": "https://a.b", "promised": "P.", "measured": "M.", "at": "2026-11-22"}
    shown = page.page(page.read() | {"hf": {**words, "rows": [ROW.as_json(), waiting.as_json()]}})
    assert "| table 1 | accuracy, % | 95 | 96 ± 1 (3 seeds) | **reached** |  | 3 |" in shown
    assert "- table 9: accuracy, % (the paper: 91). A GPU." in shown


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
    monkeypatch.setattr(images, "__file__", str(tmp_path / "checkout" / "benchmarks" / "papers" / "images.py"))
    assert images.folder() == beside


def test_a_paper_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["nobody"]) == 2
    assert "unknown: nobody" in capsys.readouterr().out


PRESENT = __main__.present()


@pytest.mark.parametrize("name", [PRESENT[0], *(pytest.param(each, marks=pytest.mark.drill) for each in PRESENT[1:])])
def test_each_paper_runs_small(name: str) -> None:
    module: Any = importlib.import_module(f"benchmarks.papers.{name}")
    rows = list(module.rows(module.SMALL))
    assert isinstance(module.PAPER, Paper)
    assert module.PAPER.name == name
    assert any(each.ours for each in rows)
    assert len({(each.place, each.measured) for each in rows}) == len(rows)
