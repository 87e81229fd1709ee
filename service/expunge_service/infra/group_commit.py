"""Group commit: the calls of many threads are written in one transaction.

The first thread that comes leads: it writes all calls that wait, while those that come meanwhile gather for the next
transaction. Its commit, with its sync to disk, serves all of them. A call that finds nobody is a group of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from expunge_service.infra.db import Busy

AT_ONCE = 100
"""orders in one transaction; a call that brings more of them goes alone"""


class GroupedCall(Protocol):
    @property
    def key(self) -> Hashable:
        """Return what no two calls of a transaction have in common."""

    @property
    def size(self) -> int:
        """Return how many orders the call brings."""


AnyCall = TypeVar("AnyCall", bound=GroupedCall)
Answer = TypeVar("Answer")


@dataclass
class _Waiting(Generic[AnyCall, Answer]):
    """A call, and the thread that waits for its answer or for its turn to lead."""

    call: AnyCall
    woken: threading.Event = field(default_factory=threading.Event)
    answer: Answer | Exception | None = None


class GroupCommit(Generic[AnyCall, Answer]):
    """Writes calls in groups. Safe to share between threads.

    Calls of different lanes do not wait for each other.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, list[_Waiting[AnyCall, Answer]]] = {}
        """by lane that is being written, the calls that wait for its next transaction"""
        self._guard = threading.Lock()

    def write(
        self, lane: str, call: AnyCall, transaction: Callable[[Sequence[AnyCall]], Sequence[Answer | Exception]]
    ) -> Answer:
        """Return the call's answer once the transaction that wrote it has committed, or raise the error that it is.

        ``transaction`` writes calls and commits, and returns what each is answered. Where it raises, it has written
        none of them. It runs in a context of its own: it acts for many callers, and for none of them in particular.
        """
        mine = _Waiting[AnyCall, Answer](call)
        with self._guard:
            leads = lane not in self._lanes
            self._lanes.setdefault(lane, []).append(mine)
        if not leads:
            mine.woken.wait()
        if mine.answer is None:
            self._lead(lane, transaction)
        if isinstance(mine.answer, Exception):
            raise mine.answer
        assert mine.answer is not None  # noqa: S101 (for mypy)
        return mine.answer

    def _lead(self, lane: str, transaction: Callable[[Sequence[AnyCall]], Sequence[Answer | Exception]]) -> None:
        """Write the calls that wait, and wake their threads and the next leader."""
        with self._guard:
            group = _together(self._lanes[lane])
            self._lanes[lane] = self._lanes[lane][len(group) :]
        answers: Sequence[Answer | Exception] = [Busy("The thread that wrote the calls ended.")] * len(group)
        try:
            answers = Context().run(_answers, [each.call for each in group], transaction)
        finally:
            for each, answer in zip(group, answers, strict=True):
                each.answer = answer
            with self._guard:
                following = self._lanes[lane][:1]
                if not following:
                    del self._lanes[lane]
            for each in (*group, *following):
                each.woken.set()


def _together(waiting: Sequence[_Waiting[AnyCall, Answer]]) -> list[_Waiting[AnyCall, Answer]]:
    """Return the first calls that fit into one transaction: at least one, and no two with one key."""
    keys: set[Hashable] = set()
    orders = 0
    for place, each in enumerate(waiting):
        orders += each.call.size
        if each.call.key in keys or (place and orders > AT_ONCE):
            return list(waiting[:place])
        keys.add(each.call.key)
    return list(waiting)


def _answers(
    calls: Sequence[AnyCall], transaction: Callable[[Sequence[AnyCall]], Sequence[Answer | Exception]]
) -> Sequence[Answer | Exception]:
    """Return what each call is answered. Where one makes the transaction fail, each is written alone."""
    try:
        return transaction(calls)
    except Busy as error:  # a database that is silent is silent for all: nobody waits for it again
        return [error] * len(calls)
    except Exception as error:
        if len(calls) == 1:
            return [error]
        return [answer for call in calls for answer in _answers([call], transaction)]
