"""The benchmark room answers every target of the performance page, and says why a missed one is missed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import page, value_of
from benchmarks.targets import TARGETS, explained, of_row, unanswered, was_not_run

ROOT = Path(__file__).parents[2]
WEIGHTS = {"ResNet-18": (11_000_000, 11_800_000)}
"""published networks that a row may name, and how many weights they have with ten to a thousand classes"""
PUBLISHED = json.loads((ROOT / "benchmarks" / "results" / "bench.json").read_text())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.says)
def test_every_target_names_a_benchmark_that_is_there_and_a_reason(target: object) -> None:
    assert "def rows(" in (ROOT / "benchmarks" / f"{target.benchmark}.py").read_text()  # type: ignore[attr-defined]
    assert target.reason  # type: ignore[attr-defined]


def test_every_benchmark_finds_what_it_imports() -> None:
    names = sorted(file.stem for file in (ROOT / "benchmarks").glob("[a-z]*.py") if "def rows(" in file.read_text())
    imported = "; ".join(f"import benchmarks.{name}" for name in names)
    done = subprocess.run([sys.executable, "-c", imported], cwd=ROOT, capture_output=True, text=True, check=False)
    assert len(names) > 30 and done.returncode == 0, done.stderr


def test_published_rows_have_the_form_of_the_page_and_reasons_where_they_miss() -> None:
    for row in PUBLISHED:
        assert {"name", "value", "target", "unit", "met", "sides", "benchmark", "at", "load"} <= row.keys()
        assert row["sides"], row["name"]
        is_there = (ROOT / "benchmarks" / f"{row['benchmark']}.py").exists()
        assert is_there or row.keys() >= {"commit"}, row["name"]
        if row["met"] is False and "commit" not in row:
            found = of_row(row["name"])
            assert found is not None
            assert row["sides"]["reason"] == found.reason, row["name"]


def test_the_page_shows_every_figure_and_names_what_was_not_measured() -> None:
    shown = page(PUBLISHED)
    for row in PUBLISHED:
        assert f"| {row['name']} | {value_of(row)} |" in shown
    for target in TARGETS:
        answered = any(re.match(target.rows, row["name"]) for row in PUBLISHED if not was_not_run(row))
        assert answered != (f"- {target.says}: " in shown)
        assert answered or target.seen in shown


def test_a_target_without_a_row_says_what_other_runs_gave() -> None:
    """Or the page would call a figure that stands elsewhere, missed or not, unmeasured."""
    assert [target.says for target in unanswered(PUBLISHED) if not target.seen] == []


@pytest.mark.parametrize("network", WEIGHTS)
def test_a_row_that_names_a_published_network_counts_that_networks_weights(network: str) -> None:
    least, most = WEIGHTS[network]
    rows = [row for row in PUBLISHED if network in row["name"]]
    assert rows
    for row in rows:
        assert least <= row["sides"]["parameters"] <= most, row["name"]


def test_a_row_that_was_not_run_has_no_figure_and_answers_no_target() -> None:
    name = "ResNet-18, 11,172,042 weights: an update's maths"
    row = {"name": name, "value": None, "target": "reported", "unit": "s", "met": None, "sides": {"not_run": "no GPU"}}
    assert value_of(row) == "not run"
    assert of_row(name) in unanswered([row])
    assert of_row(name) not in unanswered([row | {"value": 0.5, "sides": {"parameters": 11_172_042}}])


def test_a_missed_row_is_given_its_targets_reason_and_raw_figures_are_sides() -> None:
    name = "update / floor, d = 21,840"
    row = explained({"name": name, "value": 12, "target": "<= 3", "met": False, "raw": {"a": 1}})
    found = of_row(name)
    assert found is not None
    assert row["sides"] == {"a": 1, "reason": found.reason}
    assert "raw" not in row
    assert found not in unanswered([row])
    assert len(unanswered([])) == len(TARGETS)


@pytest.mark.parametrize(("value", "target", "verdict"), [(2, "<= 1", False), (2, ">= 2", True), (2, "reported", None)])
def test_a_row_without_a_verdict_is_judged_by_its_target(value: float, target: str, verdict: bool | None) -> None:
    row = explained({"name": "x", "value": value, "target": target, "sides": {"a": 1}})
    assert row["met"] is verdict
    assert ("reason" in row["sides"]) is (verdict is False)
