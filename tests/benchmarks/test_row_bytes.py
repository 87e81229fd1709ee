"""Bytes a row: the benchmark fills the real tables, and the sizing page multiplies what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import row_bytes
from expunge_service.infra.tables import Membership

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_row_takes_more_than_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_bytes, "COUNT", 2000)
    monkeypatch.setattr(row_bytes, "BATCH", 1000)
    table = Membership.__table__
    rows = [{each.name: row_bytes.value(each, place) for each in table.columns} for place in range(2)]
    text = sum(len(each) for each in rows[0].values() if isinstance(each, str))
    assert text == 4 * 64
    assert rows[0]["subject_digest"] != rows[1]["subject_digest"]
    assert row_bytes.on_sqlite(table, tmp_path / "rows.db").whole > 1.5 * text  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["membership", "sealed vector, r = 64", "key"])
def test_the_sizing_page_has_the_published_figures(name: str) -> None:
    found = {row["name"]: row["value"] for row in json.loads((RESULTS / "bench.json").read_text())}
    shown = f"{found[f'bytes a row with its indexes: {name}, PostgreSQL']:.0f}"
    [line] = [
        line
        for line in (RESULTS / "scaling.md").read_text().splitlines()
        if line.startswith(f"| {name}") and "million" not in line
    ]
    assert line.split("|")[2].strip() == shown
