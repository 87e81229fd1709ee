"""Preparing at scale stays in memory. `python -m pytest -m drill lab/tests/test_memory.py -s` shows how far."""

from __future__ import annotations

import pytest

from benchmarks.memory import LIMIT, PEOPLE, measured


@pytest.mark.drill
def test_preparing_eight_thousand_people_by_sketch_stays_under_two_gigabytes() -> None:
    found = measured(PEOPLE)
    print(f"{found['resident'] / 1e9:.2f} GB resident, {found['cpu']:.0f} CPU s, d = {found['dimension']:,}")
    assert found["dimension"] > 203_000
    assert found["before"] < found["resident"] <= LIMIT
