"""The program that trains one part on a machine of an engine: how it is started there, and how it is ended.

Standard library alone: an engine's own process, which holds no torch, imports this.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from time import sleep

from expunge_service.infra.python import PYTHON
from expunge_workers.runtime.walls import listed

PRECISE = {"CUBLAS_EMULATE_DOUBLE_PRECISION": "0"}
"""``proved`` counts with the rounding of true float64; the processes that train inherit it"""
PAUSE_SECONDS = 0.01


def start_program(place: str, name: str, key: bytes) -> subprocess.Popen[bytes]:
    """Start the program for the part of this name at this place (``PartFiles``); it ends with this thread.

    Of the environment's secrets it is given those alone that open a bucket; the key is written to its input.
    """
    bucket = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    process = subprocess.Popen(  # noqa: S603 (our own words)
        [*PYTHON, "-m", "expunge_workers.part", place, name],
        env=listed(os.environ) | bucket | PRECISE | {"HOME": str(Path.home())},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    if process.stdin is not None:
        with process.stdin as given, suppress(BrokenPipeError):  # it ended at once; its exit status says so
            given.write(key)
    return process


def end_program(process: subprocess.Popen[bytes]) -> None:
    """End a program; when this returns, no process that it started runs."""
    below = descendants(process.pid)
    process.kill()
    process.wait()
    for child in below:  # in sessions of their own: each ends with its parent, and none is waited for
        with suppress(ProcessLookupError):
            os.kill(child, SIGKILL)
    while any(_runs(child) for child in below):
        sleep(PAUSE_SECONDS)


def descendants(process: int) -> list[int]:
    """Return the processes below this one."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it ended meanwhile
            parents.setdefault(_status(int(folder.name))[1], []).append(int(folder.name))
    below, layer = list[int](), [process]
    while layer:
        layer = [child for parent in layer for child in parents.get(parent, ())]
        below += layer
    return below


def _runs(process: int) -> bool:
    with suppress(OSError, IndexError, ValueError):
        return _status(process)[0] not in "ZX"  # dead, and not yet waited for
    return False


def _status(process: int) -> tuple[str, int]:
    """Return the state of a process, as one letter, and its parent. Raises OSError where it is gone."""
    state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return state, int(parent)
