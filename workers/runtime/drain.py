"""A planned stop of this process: its work ends where it looks, and its claims go back at once, by a thread of its own.

A signal handler calls ``ask``. The thread gives back what the process holds, while its work may be anywhere: the fence
decides between a claim that goes back and a version that is published. The work ends with ``Drained`` at its next look:
before a fork, at its progress, between two phases or units, and never inside a transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

END_SECONDS = 10.0
"""that a process waits at its end for the thread that gives back: a database that is away must not keep it"""


class Drained(BaseException):
    """This process is to end. No ``Exception``: what handles failures of the work must not take it for one."""


_asked = False
_questions: SimpleQueue[None] = SimpleQueue()
_heard = threading.Event()
_giving_back = threading.RLock()


def ask(*_: object) -> None:
    """Ask this process to stop. A signal handler may call it, which may hold any lock: it takes none."""
    global _asked  # noqa: PLW0603 (a signal is sent to the process)
    if not _asked:
        _asked = True
        _questions.put(None)


def asked() -> bool:
    return _asked


def look() -> None:
    """End the work here if this process is to stop. Raises Drained."""
    if _asked:
        raise Drained


def look_on(share: float) -> None:  # noqa: ARG001 (a share of the work: what calls this calls it with its progress)
    """Look, as what a computation calls with its progress. Raises Drained."""
    look()


def sleep(seconds: float) -> None:
    """Sleep, but not on where this process is to stop. Raises Drained."""
    look()
    if seconds > 0:
        _heard.wait(seconds)
        look()


@contextmanager
def undivided() -> Iterator[None]:
    """Let nothing be given back inside the block, which is short. It writes what no fence guards. Raises Drained."""
    with _giving_back:
        look()
        yield


@contextmanager
def answered_by(give_back: Callable[[], object]) -> Iterator[None]:
    """Call ``give_back`` in a thread of its own once this process is asked to stop; wait for that thread at the end."""

    def answer() -> None:
        _questions.get()
        _heard.set()
        with _giving_back:
            give_back()

    thread = threading.Thread(target=answer, name="drain", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if _asked:
            thread.join(END_SECONDS)
