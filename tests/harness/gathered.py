"""A group of calls for sure: the first one waits until all of them have come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from expunge_service.infra.group_commit import GroupCommit


class Gathered(GroupCommit[Any, Any]):
    """Begins the first transaction when ``count`` calls wait in all lanes. ``sizes``: how many each transaction had."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.sizes: list[int] = []

    def _lead(self, lane: str, transaction: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        deadline = time.monotonic() + 30
        while sum(map(len, [*self._lanes.values()])) < self.count and time.monotonic() < deadline:
            time.sleep(0.002)
        self.count = 0  # what is left over goes as it comes

        def counted(calls: Sequence[Any]) -> Sequence[Any]:
            self.sizes.append(len(calls))
            return transaction(calls)

        super()._lead(lane, counted)


def gather(app: FastAPI, count: int) -> Gathered:
    """Let the next ``count`` deletion requests of this API wait for each other."""
    intake = Gathered(count)
    app.state.service = replace(app.state.service, intake=intake)
    return intake
