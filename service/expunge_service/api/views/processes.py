"""The processes of the service and their heartbeats, for readiness, the page and the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.infra.db import now
from expunge_service.infra.tables import Heartbeat
from expunge_service.infra.time import SECOND
from expunge_service.queue import BROKER_REFUSES


@dataclass(frozen=True)
class ProcessState:
    """A worker, updater or scheduler."""

    row: Heartbeat
    silent_seconds: float
    alive: bool

    @property
    def is_refused(self) -> bool:
        """Whether the broker refuses the user or password of this living process."""
        return self.alive and bool((self.row.serves or {}).get(BROKER_REFUSES))


def processes(session: Session, lease_seconds: float) -> list[ProcessState]:
    """Return all processes that another has not replaced, those heard last first. A living one beats within a lease.

    Beats of the future do not count: a clock that had jumped ahead left them.
    """
    at = now(session)
    rows = session.scalars(select(Heartbeat).order_by(Heartbeat.beat_at.desc(), Heartbeat.process))
    return [
        ProcessState(row, max(0.0, (at - row.beat_at) / SECOND), abs(at - row.beat_at) <= int(lease_seconds * SECOND))
        for row in rows
    ]
