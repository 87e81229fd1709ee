"""How many trainings a model needs a year whose updates repeat its training, and which deadlines are missed.

A year is simulated with the planner that the service asks (``next_action``): requests arrive at random, each is due
after 15, 30 or 45 days or has no deadline, a third of them is decided late (verified, approved, a hold lifted), some
attempts fail, and for three days at a time nothing runs. ``tests/unlearning/accounting/test_batch.py`` holds what is
promised. ``python -m benchmarks trainings_a_year``; it takes seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Any

from unlearning.accounting.budget import Budget
from unlearning.accounting.policy import REPAIR, SECOND, Clock, Policy, Queue, batch_by_rule, next_action

HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
YEAR = 365 * DAY
NEVER = 100 * YEAR
DEADLINES = (15, 30, 45, None)
PLANNED = 30 * DAY
"""within which a request is carried out that has no deadline (``service/expunge_service/requests/deadlines.py``)"""
SEEDS = range(5)
LATE_DECISIONS = 1 / 3
FAILING, OUTAGES, OUTAGE = 0.3, 3, 3 * DAY
ENDLESS = Budget(spent=0, limit=None, budget_cost=0)
BY_DEADLINE = 31_536_000


@dataclass(frozen=True)
class Trouble:
    """``failing``: the share of attempts that end without a result. ``outages``: of three days each, in the year."""

    failing: float = 0.0
    outages: int = 0
    late_decisions: float = 0.0


@dataclass(frozen=True)
class Request:
    """``ready``: when a worker may take it. ``due``: its deadline, or the moment that is planned in its place."""

    ready: int
    due: int


@dataclass(frozen=True)
class Year:
    """``late``: requests that were done after ``due``. ``slack``: the least time that was left, microseconds.

    ``broken``: the late ones for which failures and outages took no more than the three days that are reserved.
    """

    requests: int
    trainings: int
    late: int
    broken: int
    slack: int


def requests(chance: random.Random, a_month: float, takes: int, late_decisions: float) -> list[Request]:
    """Return a year's requests in the order in which they may be taken.

    A late decision comes at any moment until three days and two trainings are left: later, nobody can promise anything.
    """
    found, at = [], 0
    while True:
        at += int(chance.expovariate(12 * a_month / YEAR))
        if at >= YEAR:
            return sorted(found, key=lambda each: each.ready)
        days = chance.choice(DEADLINES)
        span = PLANNED if days is None else days * DAY
        undecided = span - REPAIR - 2 * takes
        waits = chance.randrange(undecided) if chance.random() < late_decisions else 0
        found.append(Request(at + waits, at + span))


def year(batch: int, a_month: float, takes: int, seed: int, trouble: Trouble) -> Year:
    """Simulate a model whose training takes ``takes`` microseconds, under a policy with this batch (seconds)."""
    chance = random.Random(seed)
    policy = Policy("retrain", batch=batch)
    coming = requests(chance, a_month, takes, trouble.late_decisions)
    outages = sorted(chance.randrange(YEAR) for _ in range(trouble.outages))
    taken, trainings, slack, released, at, due = 0, 0, YEAR, 0, 0, NEVER
    waiting: list[Request] = []
    late: list[bool] = []
    lost: list[tuple[int, int]] = []
    while taken < len(coming) or waiting:
        while taken < len(coming) and coming[taken].ready <= at:
            waiting.append(coming[taken])
            due = min(due, coming[taken].due)
            taken += 1
        arrives = coming[taken].ready if taken < len(coming) else None
        queue = Queue(len(waiting), next_at=arrives, due_at=due, released_at=released)
        action = next_action(policy, ENDLESS, queue, Clock(at, takes))
        if action.kind == "wait":
            assert action.until is not None
            at = action.until if arrives is None else min(action.until, arrives)
            continue
        assert action.kind == "update", action
        down = next((begin for begin in outages if begin <= at < begin + OUTAGE), None)
        if down is not None:
            lost.append((at, down + OUTAGE))
            at = down + OUTAGE
            continue
        trainings += 1
        end = at + takes
        cut = next((begin for begin in outages if at < begin < end), None)
        if cut is None and chance.random() >= trouble.failing:
            slack = min(slack, *(each.due - end for each in waiting))
            late += [_spent(lost, each, takes, end) <= REPAIR for each in waiting if each.due < end]
            waiting, due, released, at = [], NEVER, end, end
        else:
            over = end if cut is None else cut + OUTAGE
            lost.append((at, over))
            at = over
    return Year(len(coming), trainings, len(late), sum(late), slack)


def _spent(lost: list[tuple[int, int]], request: Request, takes: int, end: int) -> int:
    """Return how long nothing was achieved since an update for this request was to begin."""
    since = max(request.ready, request.due - REPAIR - 2 * takes)
    return sum(max(0, min(over, end) - max(begun, since)) for begun, over in lost)


def years(batch: int, a_month: float, takes: int, trouble: Trouble) -> list[Year]:
    return [year(batch, a_month, takes, seed, trouble) for seed in SEEDS]


QUIET, TROUBLED = Trouble(), Trouble(FAILING, OUTAGES)
DECIDED_LATE = Trouble(FAILING, OUTAGES, LATE_DECISIONS)


def rows() -> Iterator[dict[str, Any]]:
    """Yield trainings a year by default, beside those at once and by the earliest deadline alone."""
    for a_month in (10, 100, 1000):
        yield _row(f"{a_month:,} requests a month", a_month, HOUR, QUIET, 52)
    yield _row("100 requests a month, with failures and outages", 100, HOUR, TROUBLED, 76)
    yield _row("100 requests a month, failures, outages, late decisions", 100, HOUR, DECIDED_LATE)
    yield _row("1,000 requests a month, a training of a day, the same", 1000, DAY, DECIDED_LATE)


def _row(name: str, a_month: float, takes: int, trouble: Trouble, most: int | None = None) -> dict[str, Any]:
    batch = batch_by_rule(True, takes / SECOND)
    found, at_once = years(batch, a_month, takes, trouble), years(0, a_month, takes, trouble)
    by_deadline = years(BY_DEADLINE, a_month, takes, trouble)
    late = sum(each.late for each in found)
    trainings = mean(each.trainings for each in found)
    return {
        "name": f"trainings a year by default, {name}",
        "value": trainings,
        "target": "none late" if most is None else f"<= {most}, none late",
        "unit": "trainings",
        "met": late == 0 and (most is None or trainings <= most),
        "sides": {
            "requests": sum(each.requests for each in found),
            "late": late,
            "late_within_the_reserve": sum(each.broken for each in found),
            "least_slack_days": round(min(each.slack for each in found) / DAY, 2),
            "at_once": mean(each.trainings for each in at_once),
            "by_deadline": mean(each.trainings for each in by_deadline),
            "by_deadline_late": sum(each.late for each in by_deadline),
            "at_once_late": sum(each.late for each in at_once),
            "seeds": len(SEEDS),
        },
    }
