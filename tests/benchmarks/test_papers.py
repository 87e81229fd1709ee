"""The frame of ``make papers``: rows that cannot contradict themselves, a page that agrees with its file, each paper
small."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import __main__ as command
from benchmarks.papers import page
from benchmarks.papers.row import Paper, Row, Verdict, at_least, at_most, not_run, row_of, within

ROW = Row("table 1", "accuracy, %", "95", (96.0, 95.0, 97.0), "", at_least((96.0, 95.0, 97.0), 95.0), seconds=3.0)


def test_the_page_is_made_from_its_file() -> None:
    papers = page.read()
    assert tuple(papers) == page.NAMES
    assert (page.DOCS / "papers.md").read_text() == page.page(papers)


def test_a_row_outlives_its_file() -> None:
    assert row_of(ROW.as_json()) == ROW
    assert ROW.shown() == "96 ± 1 (3 seeds)"


@pytest.mark.parametrize(
    ("ours", "verdict", "why"),
    [
        ((1.0, 2.0), Verdict.REACHED, ""),
        ((), Verdict.REACHED, ""),
        ((1.0,), Verdict.NOT_RUN, "a GPU"),
        ((1.0,), Verdict.NOT_REACHED, ""),
        ((), Verdict.NOT_RUN, ""),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(ours: tuple[float, ...], verdict: Verdict, why: str) -> None:
    with pytest.raises(ValueError, match="table 1"):
        Row("table 1", "accuracy", "95", ours, "", verdict, why)


def test_a_mean_is_judged_by_what_it_should_be() -> None:
    assert [at_most((1.0, 2.0, 3.0), limit) for limit in (2.0, 1.9)] == [Verdict.REACHED, Verdict.NOT_REACHED]
    assert [at_least((1.0, 2.0, 3.0), limit) for limit in (2.0, 2.1)] == [Verdict.REACHED, Verdict.NOT_REACHED]
    assert [within((1.0, 2.0, 3.0), 2.5, slack) for slack in (0.5, 0.4)] == [Verdict.REACHED, Verdict.NOT_REACHED]


def test_the_page_shows_what_ran_and_lists_what_did_not() -> None:
    waiting = not_run("table 9", "accuracy, %", "91", "A GPU.")
    words = {"title": "A title", "link": "https://a.b", "promised": "P.", "measured": "M.", "at": "2026-11-22"}
    shown = page.page(page.read() | {"hf": {**words, "rows": [ROW.as_json(), waiting.as_json()]}})
    assert "| table 1 | accuracy, % | 95 | 96 ± 1 (3 seeds) | **reached** |  | 3 |" in shown
    assert "- table 9: accuracy, % (the paper: 91). A GPU." in shown


def test_named_papers_replace_their_own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "build" / "papers.json")
    command.keep("hf", {"rows": [1]})
    command.keep("mini", {"rows": [2]})
    command.keep("hf", {"rows": [3]})
    assert command.kept() == {"hf": {"rows": [3]}, "mini": {"rows": [2]}}


def test_a_paper_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nobody"]) == 2
    assert "unknown: nobody" in capsys.readouterr().out


PRESENT = command.present()


@pytest.mark.parametrize("name", [PRESENT[0], *(pytest.param(each, marks=pytest.mark.drill) for each in PRESENT[1:])])
def test_each_paper_runs_small(name: str) -> None:
    module: Any = importlib.import_module(f"benchmarks.papers.{name}")
    rows = list(module.rows(module.SMALL))
    assert isinstance(module.PAPER, Paper)
    assert module.PAPER.name == name
    assert any(each.ours for each in rows)
    assert len({(each.place, each.measured) for each in rows}) == len(rows)
