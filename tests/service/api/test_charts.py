"""The page's charts: values land where the axes say, and the words beside them are right."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from expunge_service.api.views.overview import percentiles
from expunge_service.console import charts, plots
from expunge_service.console.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Frame, spread, whole_steps
from expunge_service.infra.time import moment

AT = moment(datetime(2026, 11, 21, 12, tzinfo=UTC))


def version(number: int, accuracy: float | None, days: int) -> tuple[int, int, float | None]:
    return number, AT - days * charts.DAY, accuracy


def test_a_frame_places_the_corners_and_keeps_values_inside() -> None:
    frame = Frame(10, 20, 0, 4)
    assert (frame.x(10), frame.x(20), frame.y(0), frame.y(4)) == (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP)
    assert frame.y(9) == TOP and frame.y(-1) == HEIGHT - BOTTOM
    assert frame.x(15) == (LEFT + WIDTH - RIGHT) / 2
    x, y, width, height = frame.bar(10, 15, 2)
    assert (x, round(x + width)) == (LEFT + 1, frame.x(15) - 1) and y + height == HEIGHT - BOTTOM


@pytest.mark.parametrize(
    ("high", "last"), [(0, 1), (1, 1), (3, 3), (4, 4), (5, 6), (11, 15), (99, 100), (12_345, 15_000)]
)
def test_whole_steps_reach_the_value_in_at_most_four(high: int, last: int) -> None:
    found = whole_steps(high)
    assert found[0] == 0 and found[-1] == last and len(found) <= 5
    assert len({after - before for before, after in pairwise(found)}) == 1


def test_spread_keeps_the_ends() -> None:
    assert spread([1, 2], 4) == [1, 2] and spread(list(range(10)), 4) == [0, 3, 6, 9]


def test_accuracy_says_the_versions_and_their_dates() -> None:
    drawn = charts.accuracy([version(3, 0.91, 0), version(2, None, 5), version(1, 0.94, 10)])
    assert drawn is not None
    assert "94.00% in version 1 of 11 November 2026, 91.00% in version 3 of 21 November 2026" in drawn.says
    assert [tick.label for tick in drawn.across] == ["v1, 11 Nov", "v3, 21 Nov"] and len(drawn.marks) == 2
    assert charts.accuracy([version(1, 0.9, 0)]) is None
    losses = charts.accuracy([version(2, -3.432, 0), version(1, -3.5, 10)], "minus_loss")
    assert losses is not None and losses.says.startswith("minus_loss on held-out data: -3.5 in version 1 of ")
    assert "%" not in losses.says + "".join(tick.label for tick in losses.up)


@pytest.mark.parametrize(
    ("left", "charged", "days", "words"),
    [
        (None, 5, 28, "Nothing limits the updates."),
        (0, 5, 28, "No update is left."),
        (9, 0, 28, "There was no update in the last four weeks, so there is no forecast."),
        (192, 48, 28, "At 12 a week: until March 2027."),
        (12, 48, 28, f"At 12 a week: until 28 November 2026. {charts.FEWER}"),
        (3, 1, 28, "At less than one a week: until February 2027."),
        (10**6, 4, 28, "At 1 a week: more than ten years."),
        (14, 2, 0.01, f"At 14 a week: until 28 November 2026. {charts.FEWER}"),
    ],
)
def test_the_forecast_is_in_words(left: int | None, charged: int, days: float, words: str) -> None:
    assert charts.forecast(left, charged, days * 86_400, AT) == words


def test_updates_left_fall_in_steps_to_now() -> None:
    drawn = charts.updates_left([(AT - 4 * charts.DAY, 4), (AT - 2 * charts.DAY, 3)], AT)
    assert drawn is not None and drawn.says == "Updates left: 4 on 17 November 2026, 3 now."
    half = (LEFT + WIDTH - RIGHT) / 2
    assert [pair.split(",")[0] for pair in drawn.lines[0].split()] == [
        f"{x:g}" for x in (LEFT, half, half, WIDTH - RIGHT)
    ]
    assert [tick.label for tick in drawn.up] == ["0", "1", "2", "3", "4"]


def test_deadlines_are_bars_on_their_days() -> None:
    today = AT // charts.DAY
    drawn = charts.deadlines({today + 3: 2, today + 44: 5}, 1, AT)
    assert drawn is not None and len(drawn.bars) == 2
    assert "7 open requests, the first on 24 November 2026, most (5) on 4 January 2027. 1 is overdue." in drawn.says
    assert [tick.label for tick in drawn.across] == ["21 Nov", "6 Dec", "21 Dec", "5 Jan"]
    assert charts.deadlines({}, 3, AT) is None


def test_latency_has_a_median_and_a_tail() -> None:
    week = 7 * charts.DAY
    drawn = charts.latency([(AT - 2 * week, 10, 100), (AT - week, 20, 3600)])
    assert drawn is not None and len(drawn.lines) == 2
    assert "half within 20 s, 95 of 100 within 1 h" in drawn.says
    assert charts.latency([(AT, 1, 2)]) is None


def test_percentiles_are_the_nearest_ranks() -> None:
    assert percentiles([5.0]) == (5.0, 5.0)
    values = [float(value) for value in range(100, 0, -1)]
    assert percentiles(values) == (50.0, 95.0)


def test_the_gauges_arc_runs_from_left_to_right() -> None:
    assert plots.arc(0).endswith("8.00 50.00")
    assert plots.arc(0.5).endswith("50.00 8.00")
    assert plots.arc(1) == plots.arc(7) == "M 8 50 A 42 42 0 0 1 92.00 50.00"


def test_steps_jump_where_the_value_changes() -> None:
    corners = [(0, 0), (50, 0), (50, 5), (100, 5), (100, 10), (120, 10)]
    assert plots.steps([(0, 0), (50, 5), (100, 10)], 120) == corners
    assert plots.steps([], 1) == []
