"""The figures on docs/results.md are those of the published rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.papers.page import read
from benchmarks.papers.row import Verdict, row_of
from tests.faults.report import columns

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
BENCH = json.loads((RESULTS / "bench.json").read_text())
DRILLS = [[cell.strip() for cell in line[1:-1].split("|")] for line in (RESULTS / "drills.md").read_text().splitlines()]
LINES = [
    [cell.strip() for cell in line[1:-1].split("|")]
    for line in (ROOT / "docs" / "results.md").read_text().splitlines()
    if line.startswith("| ")
]
OF_BENCHMARK = r"^`python -m benchmarks (\w+)`(?:, at that commit)?$"
"""at that commit: the benchmark was deleted after it"""
MEASURED = [(name[0], cells) for cells in LINES if (name := re.findall(OF_BENCHMARK, cells[-1]))]
DRILLED = [(name[0], cells) for cells in LINES if (name := re.findall(r"^`python -m tests.faults (\w+)`$", cells[-1]))]


@pytest.mark.parametrize("cells", [cells for _, cells in MEASURED], ids=[" ".join(cells[:2]) for _, cells in MEASURED])
def test_a_command_names_a_benchmark_that_is_there(cells: list[str]) -> None:
    [name] = re.findall(OF_BENCHMARK, cells[-1])
    assert (ROOT / "benchmarks" / f"{name}.py").exists() != cells[-1].endswith(", at that commit")


def numbers(cell: str) -> list[str]:
    return [each.replace(",", "") for each in re.findall(r"\d[\d,]*(?:\.\d+)?", cell)]


@pytest.mark.parametrize(("benchmark", "cells"), MEASURED, ids=[" ".join(cells[:2]) for _, cells in MEASURED])
def test_a_measured_figure_is_a_row_of_its_benchmark_and_day(benchmark: str, cells: list[str]) -> None:
    date = next(cell for cell in cells if re.fullmatch(r"\d{4}-\d\d-\d\d", cell))
    rows = [row for row in BENCH if row["benchmark"] == benchmark and row["at"].startswith(date)]
    for figure in numbers(cells[1]):
        found = [row for row in rows if row["value"] is not None and f"{row['value']:.4g}" == f"{float(figure):.4g}"]
        assert found, figure
        assert ("**missed**" in cells[1]) or all(row["met"] is not False for row in found), figure


def test_every_row_that_is_called_missed_missed_and_the_page_hides_none_of_its_benchmarks() -> None:
    called = Counter(name for name, cells in MEASURED if "**missed**" in cells[1])
    missed = {row["benchmark"] for row in BENCH if row["met"] is False}
    assert called and called.keys() <= missed


@pytest.mark.parametrize(("drill", "cells"), DRILLED, ids=[drill for drill, _ in DRILLED])
def test_a_drills_figure_is_a_cell_of_its_row(drill: str, cells: list[str]) -> None:
    rows = [row for row in DRILLS if len(row) == len(columns()) and row[0].replace(" ", "_") == drill]
    commit = cells[-2]
    assert any(row[-1].endswith(f"commit {commit}") and cells[1].split(";")[0] in row for row in rows)
    assert all(row[columns().index("lost")] == row[columns().index("left behind")] == "0" for row in rows)


def test_the_papers_counts_are_those_of_their_rows() -> None:
    for name, paper in read().items():
        counts = Counter(row_of(entry).verdict for entry in paper["rows"])
        (line,) = [cells for cells in LINES if cells[0].startswith(f"`{name}`,")]
        judged = [counts[verdict] for verdict in (Verdict.REACHED, Verdict.NOT_REACHED, Verdict.WITHIN_ERROR)]
        unjudged = counts.total() - sum(judged) - counts[Verdict.NOT_RUN]
        assert line[1:5] == [*map(str, judged), str(unjudged)]
