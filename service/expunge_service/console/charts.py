"""The page's charts, from facts that are read already: each has dates or numbers on its axes, and its text in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from expunge_service.console import words
from expunge_service.console.plots import Frame, Plot, Tick, spread, steps, whole_steps
from expunge_service.infra.time import DAY_SECONDS, SECOND, instant

DAY = DAY_SECONDS * SECOND
WEEK_DAYS = 7
MONTH_DAYS = 30
FEWER = "That is under a month. A longer batch, under Policy, lets deletions share updates."
AHEAD_DAYS = 45


def accuracy(newest_first: Sequence[tuple[int, int, float | None]], metric: str | None = None) -> Plot | None:
    """Draw the holdout's figure of each version shown: number, moment, value of ``metric`` (None: an accuracy).

    None: fewer than two were measured.
    """
    is_share = metric in (None, "accuracy")
    measured = [(number, at, share) for number, at, share in reversed(newest_first) if share is not None]
    points = [(float(number), share) for number, _, share in measured]
    if len(points) < 2:
        return None
    values = [value for _, value in points]
    margin = max(0.005, (max(values) - min(values)) * 0.1)
    low, high = min(values) - margin, max(values) + margin
    if is_share:
        low, high = max(0.0, low), min(1.0, high)
    name, least, most = ("Accuracy" if is_share else str(metric)), min(values), max(values)
    shown = [f"{value:.2%}" if is_share else words.number(value) for value in (values[0], values[-1], least, most)]
    frame = Frame(points[0][0], points[-1][0], low, high)
    dates = {float(number): f"v{number}, {_short(at)}" for number, at, _ in measured}
    (first, begin, _), (last, end, _) = measured[0], measured[-1]
    return Plot(
        says=f"{name} on held-out data: {shown[0]} in version {first} of {_date(begin)}, {shown[1]} in "
        f"version {last} of {_date(end)}; between {shown[2]} and {shown[3]}.",
        across=tuple(Tick(frame.x(number), dates[number]) for number in spread([x for x, _ in points], 4)),
        up=tuple(
            Tick(frame.y(value), f"{value:.1%}" if is_share else words.number(value))
            for value in (low, (low + high) / 2, high)
        ),
        lines=(frame.line(points),),
        marks=tuple(frame.mark(point) for point in points),
    )


def updates_left(changes: Sequence[tuple[int, int]], at: int) -> Plot | None:
    """Draw how many updates the budget still allowed, from (moment, updates left) after each change, up to now."""
    if not changes:
        return None
    points = steps([(float(when), float(left)) for when, left in changes], float(at))
    most = max(left for _, left in changes)
    up = whole_steps(most)
    frame = Frame(points[0][0], max(float(at), points[0][0] + SECOND), 0, float(up[-1]))
    return Plot(
        says=f"Updates left: {changes[0][1]:,} on {_date(changes[0][0])}, {changes[-1][1]:,} now.",
        across=_days_across(frame, 4),
        up=tuple(Tick(frame.y(value), f"{value:,}") for value in up),
        lines=(frame.line(points),),
        marks=(frame.mark(points[-1]),),
    )


def forecast(left: int | None, charged: int, seconds: float, at: int) -> str:
    """Write how long the updates that are left last, at the pace of the last weeks.

    Args:
        left: updates that the budget still allows; None: no limit applies.
        charged: updates that were charged in the last ``seconds``.
        at: now, in microseconds since 1970.
    """
    if left is None:
        return "Nothing limits the updates."
    if left == 0:
        return "No update is left."
    if charged == 0 or seconds <= 0:
        return "There was no update in the last four weeks, so there is no forecast."
    weekly = charged * WEEK_DAYS * DAY_SECONDS / max(seconds, DAY_SECONDS)
    days = left / weekly * WEEK_DAYS
    pace = f"At {weekly:,.0f} a week" if weekly >= 1 else "At less than one a week"
    if days > 3650:
        return f"{pace}: more than ten years."
    ends = instant(at) + timedelta(days=days)
    said = f"{pace}: until {f'{ends.day} ' if days < 60 else ''}{ends:%B %Y}."
    return f"{said} {FEWER}" if days < MONTH_DAYS else said


def deadlines(counts: Mapping[int, int], late: int, at: int) -> Plot | None:
    """Draw how many open requests are due on each calendar day (UTC) from today to 45 days ahead.

    ``counts``: by the number of days since 1970; ``late``: how many are overdue. None: no open request has a deadline.
    """
    due = sum(counts.values())
    if not due:
        return None
    up = whole_steps(max(counts.values()))
    today = at // DAY
    frame = Frame(today, today + AHEAD_DAYS + 1, 0, float(up[-1]))
    busiest = max(sorted(counts), key=lambda each: counts[each])
    return Plot(
        says=f"Deadlines of the next {AHEAD_DAYS} days: {due:,} open {'request' if due == 1 else 'requests'}, the "
        f"first on {_date(min(counts) * DAY)}, most ({counts[busiest]:,}) on {_date(busiest * DAY)}. "
        f"{late:,} {'is' if late == 1 else 'are'} overdue.",
        across=tuple(Tick(frame.x(day + 0.5), _short(day * DAY)) for day in (today + n for n in (0, 15, 30, 45))),
        up=tuple(Tick(frame.y(value), f"{value:,}") for value in up),
        bars=tuple(frame.bar(day, day + 1, count) for day, count in sorted(counts.items())),
    )


def latency(weeks: Sequence[tuple[int, float, float]]) -> Plot | None:
    """Draw the median and the 95th percentile of the time from receipt to completion, week by week.

    ``weeks``: (beginning in microseconds since 1970, median, 95th percentile), both in seconds. None: fewer than two.
    """
    if len(weeks) < 2:
        return None
    most = max(high for _, _, high in weeks)
    frame = Frame(float(weeks[0][0]), float(weeks[-1][0]), 0, most)
    begin, median, high = weeks[-1]
    return Plot(
        says=f"From receipt to completion, in the week of {_date(begin)}: half within {words.span(median)}, 95 of 100 "
        f"within {words.span(high)}. The lower line is the median, the upper one the 95th percentile.",
        across=tuple(Tick(frame.x(float(week)), _short(week)) for week in spread([week for week, _, _ in weeks], 4)),
        up=tuple(Tick(frame.y(value), words.span(value)) for value in (0.0, most / 2, most)),
        lines=(frame.line([(week, value) for week, value, _ in weeks]), frame.line([(w, v) for w, _, v in weeks])),
        marks=(frame.mark((begin, median)), frame.mark((begin, high))),
    )


def _days_across(frame: Frame, count: int) -> tuple[Tick, ...]:
    apart = (frame.end - frame.start) / (count - 1)
    places = [frame.start + place * apart for place in range(count)]
    labels = [_short(int(place)) for place in places]
    return tuple(
        Tick(frame.x(place), label)
        for place, label, before in zip(places, labels, ["", *labels], strict=False)
        if label != before
    )


def _date(at: float) -> str:
    return f"{_utc(at).day} {_utc(at):%B %Y}"


def _short(at: float) -> str:
    return f"{_utc(at).day} {_utc(at):%b}"


def _utc(at: float) -> datetime:
    return instant(int(at)).astimezone(UTC)
