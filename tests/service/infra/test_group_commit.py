"""Calls that arrive together are written together, and one that fails harms no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from expunge_service.infra.actors import _CALL, Actor, _Call, act_for, actor_of_call
from expunge_service.infra.db import Busy
from expunge_service.infra.group_commit import AT_ONCE, GroupCommit


@dataclass(frozen=True)
class Call:
    name: str
    key: str = ""
    size: int = 1


class Written:
    """Notes what each transaction holds. The first one lasts until ``enough`` calls wait for the next."""

    def __init__(self, enough: int = 0, bad: Callable[[Sequence[Call]], Exception | None] = lambda _: None) -> None:
        self.groups: list[list[str]] = []
        self.commit = GroupCommit[Call, str]()
        self._enough, self._bad = enough, bad

    def transaction(self, calls: Sequence[Call]) -> list[str]:
        self.groups.append([call.name for call in calls])
        while len(self.groups) == 1 and len(self.commit._lanes["lane"]) < self._enough:
            time.sleep(0.001)
        error = self._bad(calls)
        if error is not None:
            raise error
        return [f"answer {call.name}" for call in calls]

    def write(self, call: Call) -> str:
        try:
            return self.commit.write("lane", call, self.transaction)
        except Exception as error:
            return repr(error)

    def write_all(self, calls: Sequence[Call]) -> list[str]:
        """Write the calls, which arrive in this order while a first one is being written."""
        with ThreadPoolExecutor(len(calls) + 1) as pool:
            first = pool.submit(self.write, Call("first", "first"))
            while not self.groups:
                time.sleep(0.001)
            waiting = []
            for place, call in enumerate(calls, 1):
                waiting.append(pool.submit(self.write, call))
                while len(self.commit._lanes.get("lane", ())) < place and len(self.groups) == 1:
                    time.sleep(0.001)
            assert first.result(30)
            return [each.result(30) for each in waiting]


def calls_of(*names: str) -> list[Call]:
    return [Call(name, name) for name in names]


def test_a_call_that_finds_nobody_is_a_group_of_one() -> None:
    written = Written()
    assert [written.write(call) for call in calls_of("a", "b")] == ["answer a", "answer b"]
    assert written.groups == [["a"], ["b"]]
    assert written.commit._lanes == {}


def test_what_arrives_during_a_transaction_is_written_in_the_next_one() -> None:
    written = Written(enough=5)
    answers = written.write_all(calls_of(*"abcde"))
    assert answers == [f"answer {name}" for name in "abcde"]
    assert written.groups == [["first"], [*"abcde"]]
    assert written.commit._lanes == {}


def test_two_calls_with_one_key_are_in_two_transactions_in_their_order() -> None:
    written = Written(enough=4)
    written.write_all([Call("a", "k"), Call("b", "other"), Call("a again", "k"), Call("c", "c")])
    assert written.groups == [["first"], ["a", "b"], ["a again", "c"]]


def test_a_call_of_many_orders_goes_alone() -> None:
    written = Written(enough=3)
    written.write_all([Call("a", "a"), Call("many", "m", AT_ONCE), Call("b", "b")])
    assert written.groups == [["first"], ["a"], ["many"], ["b"]]


def test_a_call_that_breaks_the_transaction_gets_the_error_and_no_other_does() -> None:
    def bad(calls: Sequence[Call]) -> Exception | None:
        return ValueError("b") if any(call.name == "b" for call in calls) else None

    written = Written(enough=3, bad=bad)
    assert written.write_all(calls_of(*"abc")) == ["answer a", "ValueError('b')", "answer c"]
    assert written.groups == [["first"], [*"abc"], ["a"], ["b"], ["c"]]


def test_a_database_that_is_silent_is_asked_once_for_all() -> None:
    written = Written(enough=3, bad=lambda calls: Busy("silent") if calls[0].name == "a" else None)
    assert written.write_all(calls_of(*"abc")) == ["Busy('silent')"] * 3
    assert written.groups == [["first"], [*"abc"]]


def test_a_leader_that_ends_leaves_nobody_waiting() -> None:
    def bad(calls: Sequence[Call]) -> Exception | None:
        if calls[0].name == "a":
            raise SystemExit
        return None

    written = Written(enough=2, bad=bad)
    with pytest.raises(SystemExit):
        written.write_all(calls_of(*"ab"))
    assert written.commit._lanes == {}
    assert written.write(Call("c")) == "answer c"


def test_lanes_do_not_wait_for_each_other() -> None:
    commit, began, over = GroupCommit[Call, str](), threading.Event(), threading.Event()

    def slow(calls: Sequence[Call]) -> list[str]:
        began.set()
        over.wait(30)
        return [call.name for call in calls]

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(commit.write, "slow", Call("a"), slow)
        began.wait(30)
        assert commit.write("other", Call("b"), lambda calls: [call.name for call in calls]) == "b"
        over.set()
        assert waiting.result(30) == "a"


def test_a_transaction_acts_for_no_caller() -> None:
    """The thread that writes is that of one of the callers; no other's entries may name that one."""
    token = _CALL.set(_Call())
    try:
        act_for(Actor("leader", "key"))
        actors: list[Actor | None] = []

        def noted(calls: Sequence[Call]) -> list[str]:
            actors.append(actor_of_call())
            return ["" for _ in calls]

        GroupCommit[Call, str]().write("lane", Call("a"), noted)
        assert actors == [None]
        assert actor_of_call() == Actor("leader", "key")
    finally:
        _CALL.reset(token)
