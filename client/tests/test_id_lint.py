"""The linter names what went wrong with a column of ids, by lines and never by an id."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from expunge_client.id_lint import REFUSED, Finding, Kind, lint

PADDED = [f"{number:06d}" for number in range(100, 200)]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (17, Kind.NUMBER),
        (17.0, Kind.NUMBER),
        (np.float64(17), Kind.NUMBER),
        (np.int64(17), Kind.NUMBER),
        (True, Kind.BOOLEAN),
        (np.bool_(True), Kind.BOOLEAN),
        (datetime(2026, 1, 2, tzinfo=UTC), Kind.TIMESTAMP),
        (np.datetime64("2026-01-02"), Kind.TIMESTAMP),
        (None, Kind.MISSING),
        (float("nan"), Kind.MISSING),
        ("nan", Kind.MISSING),
        ("NULL", Kind.MISSING),
        ("#N/A", Kind.MISSING),
        ("17.0", Kind.DECIMAL),
        ("1.7E+01", Kind.EXPONENT),
        ("1.23457E+15", Kind.EXPONENT),
        ("2-Jan", Kind.DAMAGED),
        ("[object Object]", Kind.DAMAGED),
    ],
)
def test_no_column_of_ids_may_hold_it(value: object, kind: Kind) -> None:
    refused = [finding for finding in lint([*PADDED, value]) if finding.refused]
    assert refused == [Finding(kind, 1, (101,))]
    assert refused[0].describe().startswith("line 101: ")


@pytest.mark.parametrize(
    ("ids", "kind", "line"),
    [
        (["aB3", "x1", "Ab3"], Kind.TWINS, 3),
        ([*PADDED, "101"], Kind.SHORT, 101),
        ([*PADDED, "someone@example.org"], Kind.RARE, 101),
        ([*[f"u{number}@example.org" for number in range(30)], "17"], Kind.RARE, 31),
    ],
)
def test_what_may_be_right_is_a_warning(ids: list[str], kind: Kind, line: int) -> None:
    warned = {finding.kind: finding for finding in lint(ids)}
    assert warned[kind].lines == (line,) and kind not in REFUSED


@pytest.mark.parametrize(
    "ids",
    [
        PADDED,
        [str(number) for number in range(1, 2000)],
        [str(number) for number in range(100)],
        [f"user-{number}" for number in range(200)],
        [f"anna.smith{number}@example.org" for number in range(200)],
        ["Nan", "Nantes", "Anna", "True Smith"][1:],
    ],
    ids=["padded", "dense numbers", "from 0", "prefixed", "addresses", "words"],
)
def test_honest_columns_are_left_in_peace(ids: list[str]) -> None:
    assert lint(ids) == []


def test_three_lines_are_named_and_the_rest_counted_and_no_id() -> None:
    (finding,) = (each for each in lint([f"{number}.0" for number in range(7, 12)], first_line=2) if each.refused)
    assert finding.describe("row") == f"rows 2, 3, 4 and 2 more: {Kind.DECIMAL}"
