"""A planned stop of this process, or a rest that an operator gives it (``expunge drain``): its work ends where it
looks, and its claims go back at once, by a thread of its own.

A signal handler calls ``ask``, each heartbeat ``follow``. The thread gives back what the process holds, while its work
may be anywhere: the fence decides between a claim that goes back and a version that is published. The work ends with
``Drained`` at its next look: before a fork, at its progress, between two phases or units, and never inside a
transaction. A process that is to stop ends then; one that rests stays, and goes on when it is asked to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

END_SECONDS = 10.0
"""that a process waits at its end for the thread that gives back: a database that is away must not keep it"""
LOOK_SECONDS = 0.5
"""from one look of a resting process to the next"""


class Drained(BaseException):
    """This process is to do no work. No ``Exception``: what handles failures of the work must not take it for one."""


@dataclass
class _Wanted:
    """What this process is to do.

    Args:
        stop: end. rest: take no work until it is told otherwise.
        questions: True: there is something to give back; False: nobody asks any more.
        heard: set while it is to do no work, once the thread that gives back knows.
        giving_back: held while something is given back, or may not be.
    """

    stop: bool = False
    rest: bool = False
    questions: SimpleQueue[bool] = field(default_factory=SimpleQueue)
    heard: threading.Event = field(default_factory=threading.Event)
    giving_back: threading.RLock = field(default_factory=threading.RLock)


_wanted = _Wanted()


def ask(*_: object) -> None:
    """Ask this process to stop. A signal handler may call it, which may hold any lock: it takes none."""
    if not _wanted.stop:
        _wanted.stop = True
        _wanted.questions.put(True)


def follow(*, rest: bool) -> bool:
    """Let this process rest, or go on; return whether that is news. To go on waits until all was given back."""
    if rest == _wanted.rest:
        return False
    if rest:
        _wanted.rest = True
        _wanted.questions.put(True)
        return True
    with _wanted.giving_back:
        _wanted.rest = False
        if not _wanted.stop:
            _wanted.heard.clear()
    return True


def rests() -> bool:
    return _wanted.rest


def asked() -> bool:
    """Return whether this process is to do no work: it stops, or rests."""
    return _wanted.stop or _wanted.rest


def look() -> None:
    """End the work here if this process is to do none. Raises Drained."""
    if asked():
        raise Drained


def look_on(share: float) -> None:  # noqa: ARG001 (a share of the work: what calls this calls it with its progress)
    """Look, as what a computation calls with its progress. Raises Drained."""
    look()


def sleep(seconds: float) -> None:
    """Sleep, but not on where this process is to do no work. Raises Drained."""
    look()
    if seconds > 0:
        _wanted.heard.wait(seconds)
        look()


def sit_out(seconds: float = 0.0) -> bool:
    """Sleep, and then for as long as this process rests; return whether it goes on then, for it is not to stop."""
    _wanted.heard.wait(seconds)
    while _wanted.rest and not _wanted.stop:
        time.sleep(LOOK_SECONDS)
    return not _wanted.stop


@contextmanager
def undivided() -> Iterator[None]:
    """Let nothing be given back inside the block, which is short. It writes what no fence guards. Raises Drained."""
    with _wanted.giving_back:
        look()
        yield


@contextmanager
def answered_by(give_back: Callable[[], object]) -> Iterator[None]:
    """Call ``give_back`` in a thread of its own each time that this process is to do no work; end that thread last."""
    wanted = _wanted

    def answer() -> None:
        while wanted.questions.get():
            with wanted.giving_back:
                if wanted.stop or wanted.rest:  # not where a rest ended before it was heard of
                    wanted.heard.set()
                    give_back()

    thread = threading.Thread(target=answer, name="drain", daemon=True)
    thread.start()
    try:
        yield
    finally:
        wanted.questions.put(False)
        thread.join(END_SECONDS)
