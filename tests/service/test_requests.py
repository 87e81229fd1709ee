"""The rules of a request's life, whatever its tasks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.requests import TRANSITIONS, IllegalTransition, Regulation, Status, derive, due_at, step

TASKS = st.lists(st.sampled_from(["queued", "running", "completed", "cancelled", "held"]), max_size=6)
MOMENTS = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))


@given(TASKS)
def test_the_status_is_the_first_match_of_the_rule(tasks: list[str]) -> None:
    for status in ("held", "running", "queued"):
        if status in tasks:
            assert derive(tasks) == status
            return
    assert derive(tasks) == ("cancelled" if tasks and set(tasks) == {"cancelled"} else "completed")


@given(TASKS, st.randoms())
def test_the_order_of_tasks_does_not_matter(tasks: list[str], dice: object) -> None:
    shuffled = list(tasks)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert derive(tasks) == derive(shuffled)


def test_the_table_has_every_status_and_nothing_leaves_an_end() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert TRANSITIONS[Status.CANCELLED] == TRANSITIONS[Status.REJECTED] == frozenset()
    assert all(Status.REJECTED not in targets for targets in TRANSITIONS.values())
    assert all(status not in targets for status, targets in TRANSITIONS.items())


@pytest.mark.parametrize("old", Status)
@pytest.mark.parametrize("new", Status)
def test_a_step_outside_the_table_is_refused(old: Status, new: Status) -> None:
    if new == old or new in TRANSITIONS[old]:
        assert step(old, new) is new
        return
    with pytest.raises(IllegalTransition, match=old):
        step(old, new)


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2026-01-15", "2026-02-15"),
        ("2026-01-31", "2026-02-28"),
        ("2028-01-31", "2028-02-29"),
        ("2026-12-31", "2027-01-31"),
        ("2026-08-31", "2026-09-30"),
    ],
)
def test_gdpr_is_one_calendar_month_clamped_to_its_end(received: str, due: str) -> None:
    moment = datetime.fromisoformat(f"{received}T13:14:15+00:00")
    assert due_at(moment, Regulation.GDPR) == datetime.fromisoformat(f"{due}T13:14:15+00:00")


@given(MOMENTS)
def test_deadlines_lie_where_the_law_puts_them(received: datetime) -> None:
    gdpr, ccpa = due_at(received, Regulation.GDPR), due_at(received, Regulation.CCPA)
    assert gdpr is not None
    assert timedelta(days=28) <= gdpr - received <= timedelta(days=31)
    assert ccpa == received + timedelta(days=45)
    assert due_at(received, None) is None


def test_deadlines_are_counted_in_utc_and_need_a_timezone() -> None:
    east = datetime(2026, 2, 1, 1, 0, tzinfo=timezone(timedelta(hours=3)))
    assert due_at(east, Regulation.GDPR) == datetime(2026, 2, 28, 22, 0, tzinfo=UTC)
    with pytest.raises(ValueError, match="timezone"):
        due_at(datetime(2026, 1, 1), Regulation.GDPR)
