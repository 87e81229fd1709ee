"""The processes of one part: forks of the part behind its walls, of which the first answers for all.

They find each other as torchrun's do, by variables of the environment, over the loopback of the part's own network.
Standard library alone.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from expunge_workers.runtime.kernel import die_with_parent
from expunge_workers.runtime.messages import CPU, receive
from expunge_workers.runtime.walls import Wall

NEEDED = frozenset({Wall.NETWORK, Wall.PID})
"""walls without which several processes would meet others on this machine, or outlive their part"""
PORT = 29500
"""on which the first process waits for the others; the network is the part's own, so nothing else has it"""
LAST_SECONDS = 120.0
"""that the others may take to end once the first has the result"""
FIRST_SECONDS = 1.0
"""that the first waits, once it failed, for another that failed before it"""

Failed = Callable[[Sequence[Any] | None], None]
"""tells what a process raised; None: it ended without a word"""


@dataclass
class Ranks:
    """The processes of a part, as one of them sees them.

    Args:
        rank: the number of this process; the first is 0. count: how many there are.
        channel: by which this one answers to the first; None in the first.
    """

    rank: int = 0
    count: int = 1
    channel: socket.socket | None = None
    answering: threading.Lock = field(default_factory=threading.Lock)
    """held by whoever answers for all: the first process, or what watches the others"""
    _watching: threading.Thread | None = None
    _cpu_seconds: float = 0.0

    @property
    def place(self) -> str:
        """Return how an error says which process raised it; nothing where there is one."""
        return f" in process {self.rank} of {self.count}" if self.count > 1 else ""

    def await_others(self) -> float:
        """Wait until the others have ended well, and return the CPU seconds that they took. Raises RecipeError."""
        if self._watching is not None:
            self._watching.join(LAST_SECONDS)
            if self._watching.is_alive():
                from unlearning.types import RecipeError  # noqa: PLC0415

                what = f"One of {self.count} processes trains on for {LAST_SECONDS:g} s after the first has ended."
                raise RecipeError(what, "End every process after the same steps.")
        return self._cpu_seconds

    def let_others_speak(self) -> None:
        """Give another process that failed before this one the time to say so: its end is why this one failed."""
        if self._watching is not None:
            self._watching.join(FIRST_SECONDS)
            self.answering.acquire()

    def watch(self, others: dict[int, socket.socket], failed: Failed) -> None:
        """Wait, beside the training, for the end of each of the others, by process; tell of the first that fails."""
        ended = {os.pidfd_open(process): channel for process, channel in others.items()}

        def wait() -> None:
            while ended:
                for process in select.select([*ended], [], [])[0]:
                    words, _ = receive(ended.pop(process))
                    os.close(process)
                    if words is None or "facts" not in words:
                        self.answering.acquire()
                        failed(None if words is None else words.get("raised"))
                    else:
                        self._cpu_seconds += words["facts"][CPU]

        self._watching = threading.Thread(target=wait, daemon=True)
        self._watching.start()


def fork_ranks(count: int, failed: Failed) -> Ranks:
    """Become ``count`` processes, and return in each what it is; this one is the first.

    The process has a single thread. ``failed`` is called in the first, in a thread of its own, and must end it.
    """
    if count == 1:
        return Ranks()
    others: dict[int, socket.socket] = {}
    for rank in range(1, count):
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            die_with_parent()
            for channel in (ours, *others.values()):
                channel.close()
            os.environ.update(variables(rank, count))
            return Ranks(rank, count, theirs)
        theirs.close()
        others[process] = ours
    os.environ.update(variables(0, count))
    ranks = Ranks(0, count)
    ranks.watch(others, failed)
    return ranks


def variables(rank: int, count: int) -> dict[str, str]:
    """Return the variables by which torch, Accelerate, Lightning and Transformers find their place, as of torchrun."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(PORT),
        "TORCHELASTIC_RUN_ID": "part",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
