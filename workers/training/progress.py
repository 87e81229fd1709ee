"""The progress of a preparation, written where the API reads it."""

from __future__ import annotations

import time
from typing import cast

from service.infra.db import Database
from service.infra.tables import Generation
from unlearning.types import Progress
from workers.runtime.jobs import Preparation
from workers.runtime.lease import fence

PROGRESS_SECONDS = 0.5


class Shown:
    """Writes progress onto the generation, at most twice a second. Raises Stale once the lease is lost."""

    def __init__(self, database: Database, job: Preparation) -> None:
        self._database, self._job = database, job
        self._written = 0.0

    def part(self, phase: str, start: float, stop: float) -> Progress:
        """The progress of one phase, which is this stretch of the whole."""
        return cast(Progress, lambda share: self._show(phase, start + (stop - start) * share))

    def _show(self, phase: str, share: float) -> None:
        if time.monotonic() - self._written < PROGRESS_SECONDS:
            return
        self._written = time.monotonic()
        with self._database.write() as session:
            fence(session, self._job.lease)
            generation = session.get_one(Generation, self._job.generation_id)
            generation.progress, generation.phase = min(share, 0.99), phase
