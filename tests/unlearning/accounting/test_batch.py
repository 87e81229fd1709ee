"""The batch by rule, and what it keeps: the planner over a year of requests, with failures and outages."""

from __future__ import annotations

import pytest

from benchmarks.trainings_a_year import DAY, DECIDED_LATE, HOUR, QUIET, TROUBLED, Trouble, years
from unlearning.accounting.policy import WEEK_SECONDS as WEEK
from unlearning.accounting.policy import batch_by_rule


@pytest.mark.parametrize(
    ("repeats", "training", "batch"),
    [
        (True, 3600.0, WEEK),
        (True, 128.0, WEEK),
        (True, 64.0, 0),
        (True, 0.5, 0),
        (True, None, WEEK),
        (False, 3600.0, 0),
        (False, None, 0),
    ],
)
def test_a_week_where_an_update_repeats_a_training_of_over_a_minute(
    repeats: bool, training: float | None, batch: int
) -> None:
    assert batch_by_rule(repeats, training) == batch


@pytest.mark.parametrize("takes", [HOUR, DAY])
@pytest.mark.parametrize("a_month", [10, 100, 1000])
def test_no_deadline_is_missed_by_default(a_month: int, takes: int) -> None:
    for trouble in (QUIET, TROUBLED, Trouble(late_decisions=1 / 3)):
        assert [each.late for each in years(WEEK, a_month, takes, trouble)] == [0] * 5, trouble


@pytest.mark.parametrize("takes", [HOUR, DAY])
@pytest.mark.parametrize("a_month", [10, 100, 1000])
def test_a_late_decision_is_late_only_where_more_was_lost_than_the_reserve(a_month: int, takes: int) -> None:
    """It may leave three days and two trainings. An outage of three days beside failed attempts takes more."""
    for each in years(WEEK, a_month, takes, DECIDED_LATE):
        assert each.broken == 0
        assert each.late <= each.requests / 1000


def test_a_year_has_a_training_a_week_whatever_the_load() -> None:
    assert [each.trainings for each in years(WEEK, 1000, HOUR, QUIET)] == [52] * 5
    assert all(each.trainings <= 60 for each in years(WEEK, 10, HOUR, QUIET))
    assert all(60 <= each.trainings <= 90 for each in years(WEEK, 100, HOUR, TROUBLED))
    assert all(each.trainings > 1000 for each in years(0, 100, HOUR, QUIET))
