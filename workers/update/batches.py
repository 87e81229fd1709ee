"""Which of the waiting tasks one claim takes: all of them, unless claims ended without a result.

Pure rules over counts and clocks, never over what is deleted. A claim is counted when it is made. After two claims
without a result the batch is halved, so that one request that kills workers is found among many; alone, it is
held after three. An attempt that the machine spoilt counts to two at most: nobody is held for a full disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HALVE_AFTER = 2
HOLD_AFTER = 3


@dataclass(frozen=True)
class Waiting:
    """A task that may be claimed. ``group`` is the token of its last claim: tasks that failed together share it."""

    id: str
    request_id: str
    attempts: int
    group: int


@dataclass(frozen=True)
class Choice:
    """``take`` these together; ``hold`` those, which failed alone too often. ``attempts`` each is counted with."""

    take: tuple[Waiting, ...]
    hold: tuple[Waiting, ...]

    def attempts(self, task: Waiting) -> int:
        """The task's attempts once this claim is counted.

        In company it counts to two at most: the third attempt is one that it makes alone.
        """
        return task.attempts + 1 if len(self.take) == 1 else min(task.attempts + 1, HALVE_AFTER)


def choose(waiting: Sequence[Waiting], limit: int) -> Choice:
    """The next batch out of ``waiting`` (oldest first), of at most ``limit`` tasks."""
    lost = tuple(task for task in waiting if task.attempts >= HOLD_AFTER)
    rest = [task for task in waiting if task.attempts < HOLD_AFTER]
    suspects = [task for task in rest if task.attempts >= HALVE_AFTER]
    if not suspects:
        return Choice(tuple(rest[:limit]), lost)
    first = min(task.group for task in suspects)
    together = [task for task in suspects if task.group == first]
    return Choice(tuple(together[: (len(together) + 1) // 2]), lost)
