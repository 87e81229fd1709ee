"""Work: the seconds that computing takes by itself, however busy the machine is with something else.

How long a training took by the wall says more of the machine's other load than of the training. What is decided by the
cost of a training, as how often it is repeated, is decided by its work.
"""

from __future__ import annotations

import resource
import time

_elsewhere = 0.0


def add_cpu_seconds(seconds: float) -> None:
    """Count CPU time of processes that this one does not wait for itself: those of worlds."""
    global _elsewhere  # noqa: PLW0603 (one count for the process, as the kernel's own)
    _elsewhere += seconds


def children_cpu_seconds() -> float:
    """Return the CPU time of all processes that this one has waited for, with those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_seconds() -> float:
    """Return the CPU time so far of this process's threads, and of the processes that computed for it."""
    return time.process_time() + children_cpu_seconds() + _elsewhere


def work_of(wall_seconds: float, cpu_seconds: float, device: str) -> float:
    """Return the seconds of work of something that took so long by the wall and by the CPU.

    Several threads take more CPU time than wall time: then the wall counts. On a card the CPU time says nothing of how
    long the card computed, and the card is this worker's own: there the wall counts too.
    """
    return min(wall_seconds, cpu_seconds) if device == "cpu" else wall_seconds
