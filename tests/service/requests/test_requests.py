"""The rules of a request's life, whatever its tasks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge_service.requests.deadlines import Regulation, due_at, extended, require_extendable
from expunge_service.requests.reasons import Reason
from expunge_service.requests.states import (
    TRANSITIONS,
    RequestRefused,
    Status,
    awaits_decision,
    derive,
    may_reject,
    may_verify,
    stands_alone,
    step,
)

TASKS = st.lists(st.sampled_from(["queued", "running", "completed", "cancelled", "blocked"]), max_size=6)
MOMENTS = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))


@given(TASKS)
def test_the_status_is_the_first_match_of_the_rule(tasks: list[str]) -> None:
    for status in ("blocked", "running", "queued"):
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
    assert [old for old, targets in TRANSITIONS.items() if Status.REJECTED in targets] == [Status.BLOCKED]
    assert all(status not in targets for status, targets in TRANSITIONS.items())


@pytest.mark.parametrize("old", Status)
@pytest.mark.parametrize("new", Status)
def test_a_step_outside_the_table_is_refused(old: Status, new: Status) -> None:
    if new == old or new in TRANSITIONS[old]:
        assert step(old, new) is new
        return
    with pytest.raises(ValueError, match=old):
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


def test_deadlines_are_counted_in_the_time_zone_of_the_receipt_and_need_one() -> None:
    east = datetime(2026, 2, 1, 1, 0, tzinfo=timezone(timedelta(hours=3)))
    assert due_at(east, Regulation.GDPR) == datetime(2026, 2, 28, 22, 0, tzinfo=UTC)
    with pytest.raises(ValueError, match="timezone"):
        due_at(datetime(2026, 1, 1), Regulation.GDPR)


@given(MOMENTS, st.sampled_from(list(Regulation)))
def test_an_extension_lies_where_the_law_puts_it(received: datetime, regulation: Regulation) -> None:
    first, second = due_at(received, regulation), extended(received, regulation)
    assert first is not None
    if second is None:
        assert regulation in (Regulation.LGPD, Regulation.DELETE_ACT)
        return
    if regulation not in (Regulation.GDPR, Regulation.UK_GDPR):
        assert second - first == first - received, "as long again"
        return
    months = (second.year - received.year) * 12 + second.month - received.month
    assert months == 3 and timedelta(days=89) <= second - received <= timedelta(days=92)
    assert second.day == received.day or (second + timedelta(days=1)).day == 1
    assert second.timetz() == received.timetz()


@pytest.mark.parametrize(
    ("received", "due"), [("2026-11-30", "2027-02-28"), ("2026-01-31", "2026-04-30"), ("2026-10-15", "2027-01-15")]
)
def test_gdpr_extends_by_two_further_months(received: str, due: str) -> None:
    moment = datetime.fromisoformat(f"{received}T13:14:15+00:00")
    assert extended(moment, Regulation.GDPR) == datetime.fromisoformat(f"{due}T13:14:15+00:00")
    with pytest.raises(ValueError, match="timezone"):
        extended(datetime(2026, 1, 1), Regulation.GDPR)


LAWS = st.sampled_from([None, "gdpr", "ccpa", "lgpd"])


@given(st.sampled_from(list(Status)), LAWS, *[st.none() | st.integers(0, 5)] * 2, st.integers(0, 5))
def test_a_deadline_is_extended_once_while_it_runs(
    status: Status, law: str | None, due: int | None, extended_at: int | None, now: int
) -> None:
    allowed = law in ("gdpr", "ccpa") and extended_at is None
    may = allowed and status in ("queued", "running", "blocked") and due is not None and due > now
    if may:
        require_extendable(status, law, due, extended_at, now)
        return
    with pytest.raises(RequestRefused) as refused:
        require_extendable(status, law, due, extended_at, now)
    codes = {"no_deadline", "not_extendable", "not_open", "already_extended", "deadline_passed"}
    assert refused.value.code in codes


@pytest.mark.parametrize(("now", "refused"), [(99, False), (100, True), (101, True)])
def test_at_its_deadline_it_is_too_late_to_extend(now: int, refused: bool) -> None:
    facts = (Status.QUEUED, "gdpr", 100, None, now)
    if not refused:
        require_extendable(*facts)
        return
    with pytest.raises(RequestRefused) as found:
        require_extendable(*facts)
    assert found.value.code == "deadline_passed"


REASONS = st.sampled_from([None, Reason.UNVERIFIED, "large", "legal_hold", "no_match"])


@given(st.sampled_from(list(Status)), REASONS)
def test_a_request_is_decided_on_while_it_is_unverified_and_never_again(status: Status, reason: str | None) -> None:
    waiting = status == "blocked" and reason == "unverified"
    assert awaits_decision(status, reason) is waiting
    assert stands_alone(status, reason) is (waiting or status in ("rejected", "cancelled"))
    for may, once, never in ((may_verify, False, {"rejected", "cancelled"}), (may_reject, True, set(Status))):
        if waiting:
            assert may(status, reason)
        elif once and status == "rejected":
            assert not may(status, reason), "twice is once"
        elif status not in never:
            assert not may(status, reason), "it counts as verified"
        else:
            with pytest.raises(RequestRefused) as refused:
                may(status, reason)
            assert refused.value.code in {"already_rejected", "already_cancelled", "not_unverified"}


@given(st.lists(TASKS, min_size=2, max_size=8))
def test_whatever_its_tasks_do_a_request_takes_only_steps_of_the_table(history: list[list[str]]) -> None:
    """Tasks change one by one; the next state that they derive is a step, or refused before it is taken."""
    status = Status.QUEUED
    for tasks in history:
        new = derive(tasks)
        if new != status and new not in TRANSITIONS[status]:
            with pytest.raises(ValueError, match="cannot become"):
                step(status, new)
            continue
        status = step(status, new)
        assert status is not Status.REJECTED
        assert (status in ("completed", "cancelled")) == (not {"queued", "running", "blocked"} & set(tasks))
