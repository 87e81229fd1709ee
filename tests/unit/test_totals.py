"""The sum in spans is the plain float64 sum, bit for bit."""

from __future__ import annotations

import pytest
import torch

from unlearning.model import sums as totals
from unlearning.model.sums import distance, total_of


@pytest.mark.parametrize("dimension", [1, 7, 8, 9, 50])
def test_the_sum_in_spans_is_the_plain_sum(dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "SPAN", 8)
    monkeypatch.setattr(totals, "STEP", 3)
    random = torch.Generator().manual_seed(dimension)
    vectors = {f"p{index}": torch.randn(dimension, generator=random) for index in range(5)}
    weights = torch.randn(dimension, generator=random)
    wanted = vectors["p0"].double()
    for name in ("p2", "p3"):
        wanted += vectors[name]
    total = total_of(vectors, ["p3", "p0", "p2"], weights)
    assert torch.equal(total.whole(), wanted)
    assert total.norm() == pytest.approx(float(wanted.norm()), rel=1e-14)
    moved = total.onto(weights)
    assert torch.equal(moved, weights + wanted.float())
    assert distance(moved, weights) == pytest.approx(float((moved - weights).norm()), rel=1e-5)


def test_pieces_that_cross_a_span_are_added_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "SPAN", 8)
    vector = torch.arange(30, dtype=torch.float64)
    total = totals.Total(30, torch.device("cpu"))
    for start in range(0, 30, 11):
        total.add(start, vector[start : start + 11])
    assert torch.equal(total.whole(), vector)
