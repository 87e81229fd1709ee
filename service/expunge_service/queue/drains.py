"""Workers and updaters that an operator lets rest, as before a machine is stopped: ``expunge drain``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import NOW
from expunge_service.infra.tables import GenerationPart, Heartbeat, Lease
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_service.infra.time import ALIVE_SECONDS
from expunge_service.queue.leases import in_force
from expunge_service.queue.serves import RESTS, beats


@dataclass(frozen=True)
class WorkerState:
    """A living worker or updater.

    Args:
        asked: whether it is asked to take no work; ``rests``: whether it has heard so, and takes none.
        holds: whether a claim, or a unit of another's training, is its.
    """

    process: str
    kind: str
    software: str
    asked: bool
    rests: bool
    holds: bool

    @property
    def is_as_asked(self) -> bool:
        """Whether it works, or has come to rest, as it was asked to."""
        return self.rests == self.asked and not (self.asked and self.holds)


def worker_states(session: Session, names: Collection[str] = ()) -> list[WorkerState]:
    """Return the living workers and updaters, by name: all, or those with one of these names, or on such a machine."""
    rows = select(Heartbeat).where(Heartbeat.kind.in_(("worker", "updater")), beats(ALIVE_SECONDS))
    owners = {
        *session.scalars(select(Lease.owner).where(in_force(NOW))),
        *session.scalars(select(GenerationPart.owner).where(GenerationPart.done_at.is_(None)).distinct()),
    }
    return [
        WorkerState(
            row.process,
            row.kind,
            row.software,
            asked=row.drained,
            rests=bool((row.serves or {}).get(RESTS)),
            holds=row.process in owners,
        )
        for row in session.scalars(rows.order_by(Heartbeat.process))
        if not names or any(_is_named(row.process, name) for name in names)
    ]


def _is_named(process: str, name: str) -> bool:
    """Return whether a process has this name, or runs on the machine of this name."""
    return process == name or process.startswith(f"{name}:")


def drain_processes(session: Session, processes: Collection[str], *, drained: bool) -> None:
    """Ask these processes to take no work, or to take it again: their next heartbeat tells them."""
    theirs = Heartbeat.process.in_(processes), Heartbeat.drained.is_not(drained)
    changed = update(Heartbeat).where(*theirs).values(drained=drained).returning(Heartbeat.process)
    kind = "worker.drained" if drained else "worker.resumed"
    for process in sorted(session.scalars(changed)):
        record(session, DEFAULT_TENANT, kind, worker=process)
