"""What a process tells of itself: a heartbeat, which renews its lease while it computes, and the phases of its work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

import expunge
from expunge_service.infra.broker.messages import Dropped
from expunge_service.infra.db import Database, now
from expunge_service.infra.tables import Generation, Heartbeat
from expunge_service.infra.time import ALIVE_SECONDS, SECOND, time_bucket
from expunge_service.queue import BROKER_REFUSES, RESTS, THREADS, Serves, TakenLease, renew
from expunge_workers.runtime.db_retry import retry
from expunge_workers.runtime.drain import follow, look, rests, sleep
from expunge_workers.runtime.machine import Machine
from expunge_workers.runtime.process import Process
from expunge_workers.runtime.work import cpu_seconds, work_of
from expunge_workers.storage.threads import own_threads

log = logging.getLogger(__name__)
STATUS = Path("/proc/self/status")


class HeartbeatSender:
    """A thread that beats every third of a lease, at least every five seconds. ``hold`` names the lease to renew.

    ``after_beats``: what another thread calls after a beat. It may take long, and delays no beat.
    ``broker_refuses``: whether the broker refuses this process, as was last seen; each beat tells it, and /readyz.
    ``file`` is touched before each beat, also where the beat fails: a probe that reads it restarts a process that
    hangs, and none whose database is away.

    A beat that fails (the database is unreachable) is logged and tried again. A lease that ends meanwhile is fenced.
    ``stop`` deletes the process's row. The row of a process that died is deleted by the next of its kind that is
    started, or by the scheduler.
    """

    def __init__(
        self,
        database: Database,
        process: str,
        kind: str,
        lease_seconds: float,
        *,
        machine: Machine | None = None,
        serves: Serves | None = None,
        file: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._clock = clock
        self._process, self._kind, self._machine, self._serves = process, kind, machine, serves
        self._lease_seconds = lease_seconds
        self._file = file
        self._every = min(lease_seconds / 3, 5.0)
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._lease: TakenLease | None = None
        self._generation_id: int | None = None
        self._phase = ""
        self._has_replaced = False
        self.after_beats: list[Callable[[], object]] = []
        self.broker_refuses = False
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._errands = threading.Thread()

    @classmethod
    def of(cls, process: Process, kind: str) -> HeartbeatSender:
        """Return the heartbeat of a process that computes models."""
        database, limits = process.storage.database, process.limits
        return cls(
            database,
            process.owner,
            kind,
            limits.lease_seconds,
            machine=process.machine,
            serves=process.serves,
            file=process.settings.heartbeat_file,
        )

    def start(self) -> None:
        """Wait for the database, beat once, and start the thread that beats from then on."""
        retry(self._turn, tries=None)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and delete the process's row."""
        self._stop.set()
        for thread in (self._thread, self._errands):
            if thread.is_alive():
                thread.join(timeout=10)
        try:
            with self._database.write() as session:
                session.execute(delete(Heartbeat).where(Heartbeat.process == self._process))
        except Exception as error:  # the row grows old and is forgotten, as after a crash
            log.warning("heartbeat not withdrawn: %s", type(error).__name__)

    def hold(self, lease: TakenLease, generation_id: int | None) -> None:
        """Renew this lease from now on, and write the phase to its generation."""
        with self._guard:
            self._lease, self._generation_id, self._phase = lease, generation_id, "claim"

    def release(self) -> None:
        """Stop renewing the lease."""
        with self._guard:
            self._lease, self._generation_id = None, None

    def phase(self, name: str) -> None:
        """Note what the process does now: the tasks of a lost worker show its last phase."""
        with self._guard:
            self._phase = name

    @property
    def now(self) -> str:
        """Return the phase that was noted last."""
        with self._guard:
            return self._phase

    def beat(self) -> None:
        """Write one heartbeat, renew the lease, and rest or go on as the operator asked. Raises Busy."""
        with self._guard:
            lease, generation_id, phase = self._lease, self._generation_id, self._phase
        with self._database.write() as session:
            at = now(session)
            drained = self._show(session, at)
            ours = lease is not None and renew(session, lease, at, self._lease_seconds)
            if ours and generation_id is not None:
                session.execute(update(Generation).where(Generation.id == generation_id).values(phase=_note(phase)))
        if follow(rest=drained):
            self.beat()  # so that the operator sees it at once

    def _turn(self) -> None:
        """Touch the file and beat. Raises Busy."""
        if self._file is not None:
            try:
                self._file.touch()
            except OSError as error:  # a full disk: the beat in the database goes on
                log.warning("%s was not touched: %s", self._file, error.strerror)
        self.beat()

    def _show(self, session: Session, at: int) -> bool:
        """Write the process's row; return whether it is asked to take no work."""
        row = session.get(Heartbeat, self._process)
        if row is None:
            row = Heartbeat(
                process=self._process,
                kind=self._kind,
                software=f"expunge {expunge.__version__}",
                started_at=at,
                drained=rests(),  # its row was forgotten while it was silent, and nobody let it go on
            )
            if self._machine is not None:
                row.device, row.card = self._machine.kind, self._machine.card
            session.add(row)
        if self._serves is not None:
            signs = {BROKER_REFUSES: self.broker_refuses, RESTS: rests()}
            row.serves = self._serves.to_json() | {THREADS: own_threads()} | {key: True for key in signs if signs[key]}
        row.beat_at, row.skew = at, round(self._clock() * SECOND) - at
        row.dropped = Dropped.count
        self._replace(session, row.started_at, at)
        return row.drained

    def _replace(self, session: Session, started_at: int, at: int) -> None:
        """Delete the row of one process of this kind that died before this one was started: it needs no alarm any more.

        No other sign says that it was replaced, because a process has no lasting name. One that died just before is not
        silent yet, so the beats of two minutes look for it.
        """
        if self._has_replaced or at > started_at + 2 * ALIVE_SECONDS * SECOND:
            return
        silent = min(started_at, at - ALIVE_SECONDS * SECOND)
        mine = select(Heartbeat).where(Heartbeat.kind == self._kind, Heartbeat.beat_at <= silent)
        oldest = mine.order_by(Heartbeat.beat_at).limit(1).with_for_update(skip_locked=True)
        died = session.scalar(oldest)
        if died is not None:
            session.delete(died)
            self._has_replaced = True

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._turn()
            except Exception as error:  # the next beat may succeed; the lease decides
                log.warning("heartbeat failed: %s", type(error).__name__)
                continue
            if not self._errands.is_alive():
                self._errands = threading.Thread(target=self.run_errands, name="errands", daemon=True)
                self._errands.start()

    def run_errands(self) -> None:
        """Call what follows a beat. What fails is logged, and done after a later one."""
        for call in self.after_beats:
            try:
                call()
            except Exception as error:
                log.warning("what follows a heartbeat failed: %s", type(error).__name__)


def resident_mebibytes() -> int | None:
    """Return the process's resident memory now, in MiB; None where the system does not show it (only Linux does)."""
    if not STATUS.exists():
        return None
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return next((int(line[1]) // 1024 for line in lines if line[0] == "VmRSS:"), None)


def _note(phase: str) -> str:
    """Return the phase and, where it is known, the memory that it takes; at most 32 characters."""
    resident = resident_mebibytes()
    return phase[:32] if resident is None else f"{phase} at {resident} MiB"[:32]


UNLEARN = "unlearn"
"""the phase that forgets, refines and certifies"""


class Stopwatch:
    """Times the phases of an update and reports the running one. ``seconds``: wall-clock seconds by phase."""

    def __init__(self, pulse: HeartbeatSender) -> None:
        self._pulse = pulse
        self.seconds: dict[str, float] = {}
        self._cpu_seconds: dict[str, float] = {}

    def work(self, name: str, device: str) -> float:
        """Return the seconds of work of a phase on this device; 0 where it did not come."""
        return work_of(self.seconds.get(name, 0.0), self._cpu_seconds.get(name, 0.0), device)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase. The times of one that comes several times are added. Raises Drained."""
        look()
        self._pulse.phase(name)
        start, cpu_start = time.perf_counter(), cpu_seconds()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self._cpu_seconds[name] = self._cpu_seconds.get(name, 0.0) + cpu_seconds() - cpu_start

    @contextmanager
    def unlearning(self) -> Iterator[None]:
        """Time the block that forgets, refines and certifies as one phase, and wait until its time bucket ends.

        Their time shows how many iterations they needed, which depends on the deleted people. An observer
        of the clock, the log or the metrics sees only the bucket, whether the update succeeds or not. A process that
        is to stop waits no longer, and its update is not published. Raises Drained.
        """
        start = time.perf_counter()
        try:
            with self.phase(UNLEARN):
                yield
        finally:
            took = time.perf_counter() - start
            sleep(max(0.0, time_bucket(took) - took))
            self.seconds[UNLEARN] = self.seconds.get(UNLEARN, 0.0) + time_bucket(took) - took
