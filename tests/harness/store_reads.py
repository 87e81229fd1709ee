"""How often processes read the store to learn whether the database was put back, on files that are counted."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

from expunge_service.infra.db import Database
from expunge_service.infra.files import DiskFolder, Entry
from expunge_service.infra.settings import Settings
from expunge_service.models import Guard, Watch

CALL_SECONDS = 0.02
"""between two calls that a process answers"""


class CountedFolder(DiskFolder):
    """A folder that counts in ``asked`` what a bucket would be asked for: GET, HEAD and LIST."""

    def __init__(self, root: Path, asked: list[str]) -> None:
        super().__init__(root)
        self.asked = asked

    def inside(self, name: str) -> CountedFolder:
        return CountedFolder(self.root / name, self.asked)

    def open(self, name: str) -> BinaryIO:
        self.asked.append(f"GET {name}")
        return super().open(name)

    def holds(self, name: str) -> bool:
        self.asked.append(f"HEAD {name}")
        return super().holds(name)

    def entries(self) -> Iterator[Entry]:
        self.asked.append("LIST")
        return super().entries()


def reads_a_second(settings: Settings, processes: int, seconds: float) -> float:
    """Return the reads of all processes of the API a second, each of which answers calls without a pause.

    Each has read the store's files before.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    started = [context.Process(target=_answer_calls, args=(settings, seconds, end)) for _, end in pipes]
    for process in started:
        process.start()
    counts = [begin.recv() for begin, _ in pipes]
    for process in started:
        process.join()
    return sum(counts) / seconds


def _answer_calls(settings: Settings, seconds: float, end: Connection) -> None:
    asked: list[str] = []
    database = Database(settings.database_url)
    watch = Watch(Guard(database, CountedFolder(Path(settings.store), asked)))
    assert watch.verdict().difference is None, watch.verdict()
    asked.clear()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert watch.verdict().difference is None, watch.verdict()
        time.sleep(CALL_SECONDS)
    end.send(len(asked))
