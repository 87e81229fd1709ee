"""The scheduler: a small separate process without torch. It repairs what others lost and completes what they began.

One is active at a time, under a lease; a second one waits to replace it. Every duty can be repeated, so the next tick
completes what a scheduler that dies leaves half done.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from celery import Celery
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from expunge.service import requests
from expunge.service.access import check_pepper
from expunge.service.audit import EPOCHS, HEADS, UPDATES, NotAuthentic, Signer, Witness, extend, keep_checking, record
from expunge.service.certificates import issue_due
from expunge.service.infra.actors import SCHEDULER
from expunge.service.infra.broker.notify import notify_one, publisher
from expunge.service.infra.db import Busy, Database, now
from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Store
from expunge.service.infra.limits import LIMITS, Limits
from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.settings import Settings, session_key
from expunge.service.infra.tables import (
    DeletionRequest,
    Generation,
    Heartbeat,
    IdempotencyKey,
    Lease,
    Task,
    Version,
)
from expunge.service.infra.time import SECOND
from expunge.service.models import (
    FIGURES,
    UNPURGED,
    Figures,
    Guard,
    PutBack,
    complete_waiting,
    moved_on,
    note_deleted,
    note_swept,
    sweep_store,
    tally,
    unconfirmed,
)
from expunge.service.queue import TakenLease, mark_notified, renew, take
from expunge.service.requests import Reason, announce_due_soon, large_and_due, settle
from expunge.workers.runtime.db_retry import retry
from expunge.workers.runtime.heartbeat import HeartbeatSender
from expunge.workers.runtime.recipe_messages import drop_messages
from expunge.workers.scheduler.ssrf_guard import Outbound
from expunge.workers.scheduler.webhook_sender import WebhookSender
from expunge.workers.storage import (
    KeyStore,
    confirm_committed,
    delete_ended_generations,
    destroy_keys,
    erase_ended,
    erase_lost,
    open_places,
)

LEASE = "scheduler"
ORPHAN_SECONDS = 3600.0
SILENT_SECONDS = 3600
"""A process without a heartbeat for so long is dead. Its row is deleted, which ends the alarm about it."""
PORTIONS = 10
"""of a backlog, in one tick"""
ORPHANS_EVERY = 60
"""ticks between two searches of the stores for files that nobody needs"""

TALLY_EVERY = 10
"""ticks between two additions to the tallies"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scheduler:
    """The scheduler's storage, secrets and settings."""

    owner: str
    database: Database
    store: Store
    private: Store
    keys: KeyStore
    signer: Callable[[], Signer]
    """reads the key again for every tick, because it may have been rotated"""
    pepper: Pepper
    session_key: bytes = field(repr=False)
    tenants: frozenset[str] | None
    """the tenants whose keys are in ``keys``; None: all"""
    notifier: Celery
    sweep_seconds: float
    grace_seconds: float
    lease_seconds: float

    @cached_property
    def guard(self) -> Guard:
        """Return what compares the database with the store."""
        return Guard(self.database, self.store.folder)

    def tick(self, count: int = 0) -> bool:
        """Do one round of duties. False: another scheduler is active, or a restored backup waits for the operator.

        While the store does not answer, what cannot be undone waits. Raises PutBack, Busy, ExceptionGroup.
        """
        with self.database.read() as session:
            if unconfirmed(session) is not None:
                return False
        if not hold_lease(self.database, self.owner, self.lease_seconds):
            return False
        duties: list[Callable[[], object]] = [
            lambda: sweep(self.database, self.notifier),
            lambda: settle_unmatched(self.database),
            lambda: complete_served(self.database),
            lambda: retry_large(self.database),
            lambda: announce_due_soon(self.database),
            lambda: expire_idempotency(self.database),
            lambda: forget_processes(self.database),
            lambda: drop_messages(self.database),
        ]
        if count % TALLY_EVERY == 0:
            duties.append(lambda: _in_portions(lambda: tally(self.database)))
        if count % ORPHANS_EVERY == 0:
            duties.append(self.database.truncate_log)
        carry_out([*self._irrevocable(count), *duties])
        return True

    def _irrevocable(self, count: int) -> list[Callable[[], object]]:
        """Return the duties that wait until the store has answered, and agrees with the database. Raises PutBack."""
        try:
            self.guard.look()
        except OSError as error:
            log.warning("The store does not answer: %s", error)
            return []
        witness = self.guard.witness
        duties: list[Callable[[], object]] = [
            lambda: extend_log(self.database, self.signer(), witness),
            lambda: destroy_keys(self.database, self.keys, witness, self.tenants),
            lambda: erase_ended(self.database, self.private, self.keys, self.tenants),
            lambda: issue(self.database, self.signer(), self.pepper),
            lambda: purge(self.database, self.store, witness, self.grace_seconds),
            lambda: delete_ended_generations(self.database),
            lambda: Figures(self.store.folder).sweep(self.database),
        ]
        if count % ORPHANS_EVERY == 0:
            duties.append(lambda: sweep_files(self.database, self.store, self.private))
            duties.append(lambda: erase_lost(self.database, self.keys))
            duties.append(lambda: self.keys.sweep(ORPHAN_SECONDS))
        return duties


def carry_out(duties: Iterable[Callable[[], object]]) -> None:
    """Do each duty, also after one has failed. Raises Busy at once, and ExceptionGroup at the end."""
    failed: list[Exception] = []
    for duty in duties:
        try:
            duty()
        except Busy:  # so would the others be
            raise
        except Exception as error:
            failed.append(error)
    if failed:
        raise ExceptionGroup("duties of the scheduler failed", failed)


def hold_lease(database: Database, owner: str, seconds: float) -> bool:
    """Take or renew the scheduler's lease, by the database's clock; return whether it is ours."""
    with database.write() as session:
        at = now(session)
        ours = select(Lease.token).where(Lease.name == LEASE, Lease.owner == owner, Lease.token != 0)
        token = session.scalar(ours)
        renewed = token is not None and renew(session, TakenLease(LEASE, token), at, seconds)
        return renewed or take(session, LEASE, owner, at, seconds) is not None


def sweep(database: Database, notifier: Celery) -> int:
    """Notify workers of every model whose work is due and not claimed: its notification or its worker was lost."""
    with database.write() as session:
        models = mark_notified(session)
    for model_id in models:
        notify_one(notifier, model_id)
    return len(models)


def extend_log(database: Database, signer: Signer, witness: Witness) -> int:
    """Add the audit entries that were committed since to the log, sign its new heads; return how many entries."""

    def some() -> int:
        try:
            return extend(database, signer, witness)
        except NotAuthentic as error:
            log.error("the audit log is not extended: %s", error)
            raise

    return _in_portions(some)


def issue(database: Database, signer: Signer, pepper: Pepper) -> int:
    """Issue the certificates that can be issued now; return how many."""
    return _in_portions(lambda: issue_due(database, signer, pepper))


def _in_portions(some: Callable[[], int]) -> int:
    """Do ``some`` again while it finds work, ``PORTIONS`` times at most; return the sum of its counts.

    A backlog is done in portions because other writers wait for a portion at most, and other duties for all of them.
    """
    total = 0
    for _ in range(PORTIONS):
        count = some()
        if not count:
            break
        total += count
    return total


def purge(database: Database, store: Store, witness: Witness, grace_seconds: float) -> int:
    """Delete the files of versions that were retired long enough ago, unless another version shares them."""
    with database.read() as session:
        before = now(session) - int(grace_seconds * SECOND)
        columns = select(Version.id, Version.model_id, Version.checkpoint)
        due = session.execute(columns.where(Version.status == "retired", Version.retired_at <= before)).all()
    for version in due:
        follows = (Version.model_id == version.model_id, Version.parent_id == version.id)
        with database.write() as session:
            successors = session.scalars(select(Version.id).where(*follows)).all()
            confirm_committed(session, witness, successors)
            free = note_swept(session, [version.checkpoint], apart_from=version.id)
        for digest in free:
            store.delete(digest)
        crash_point("scheduler-during-purge")
        with database.write() as session:
            note_deleted(session, free)
            _note_purged(session, version.id, version.checkpoint)
    return len(due)


def _note_purged(session: Session, version_id: str, digest: str) -> None:
    """Write that the version's file is gone: a scheduler that dies before deletes it once more."""
    version = session.scalars(select(Version).where(Version.id == version_id).with_for_update()).one()
    if version.status != "retired":
        return
    version.status, version.purged_at = "purged", now(session)
    record(
        session,
        version.tenant_id,
        "version.purged",
        model_id=version.model_id,
        version=version_id,
        checkpoint=digest,
    )


def settle_unmatched(database: Database) -> int:
    """Settle the open requests that have no task, except those that nobody has verified."""
    with database.read() as session:
        tasks = select(Task.id).where(Task.request_id == DeletionRequest.id).exists()
        waiting = DeletionRequest.status.in_(("queued", "running", "blocked"))
        decided = func.coalesce(DeletionRequest.reason, "") != Reason.UNVERIFIED
        lonely = session.scalars(select(DeletionRequest.id).where(waiting, decided, ~tasks)).all()
    if not lonely:
        return 0
    with database.write() as session:
        return len(settle(session, lonely))


def complete_served(database: Database) -> int:
    """Settle the tasks that waited for consumers, where every known consumer serves a newer version."""
    with database.read() as session:
        if not moved_on(session):
            return 0
    with database.write() as session:
        return len(complete_waiting(session))


def retry_large(database: Database) -> int:
    """Retry each unusually large request whose waiting time is over."""
    with database.read() as session:
        if session.scalar(select(Task.id).where(*large_and_due(session)).limit(1)) is None:
            return 0
    with database.write() as session:
        return len(requests.retry_large(session))


def expire_idempotency(database: Database) -> int:
    """Delete stored answers that have expired."""
    with database.read() as session:
        if session.scalar(select(IdempotencyKey.key).where(IdempotencyKey.expires_at <= now(session)).limit(1)) is None:
            return 0
    with database.write() as session:
        gone = delete(IdempotencyKey).where(IdempotencyKey.expires_at <= now(session))
        return len(session.execute(gone.returning(IdempotencyKey.key)).all())


def forget_processes(database: Database) -> int:
    """Delete the heartbeats of processes that died long enough ago for the alarm to have fired."""
    with database.read() as session:
        silent = Heartbeat.beat_at <= now(session) - SILENT_SECONDS * SECOND
        if session.scalar(select(Heartbeat.process).where(silent).limit(1)) is None:
            return 0
    with database.write() as session:
        return len(session.execute(delete(Heartbeat).where(silent).returning(Heartbeat.process)).all())


def sweep_files(database: Database, store: Store, private: Store, older_than: float = ORPHAN_SECONDS) -> int:
    """Delete files that no version names: half-written ones, drafts of dead workers, superseded secret state.

    Those written within the last ``older_than`` seconds are kept: their row may follow. Raises Busy, OSError.
    """
    with database.read() as session:
        published = set(session.scalars(select(Version.checkpoint).where(Version.status.in_(UNPURGED))))
        secret = set(session.scalars(select(Version.state).where(Version.status == "current")))
        secret |= _prepared(session)
    half_written = [Store(store.folder.inside(name)) for name in (UPDATES, HEADS, EPOCHS, FIGURES)]
    swept = sum(each.sweep((), older_than) for each in half_written)
    return (
        swept + sweep_store(database, store, published, older_than) + sweep_store(database, private, secret, older_than)
    )


def _prepared(session: Session) -> set[str]:
    """Return the digests of the states that work units still start from."""
    building = session.scalars(select(Generation.manifest).where(Generation.status.in_(("preparing", "candidate"))))
    notes = (frozen.get(name) for frozen in building if frozen for name in ("trained", "prepared"))
    return {note["state"] for note in notes if note}


def open_scheduler(settings: Settings, limits: Limits = LIMITS) -> Scheduler:
    """Open a scheduler. Raises Busy, and SettingsError where a secret is missing or a place is another's."""
    Signer.of(settings)  # a missing key is reported now
    database, pepper = Database(settings.database_url, SCHEDULER), Pepper.load(settings.pepper_file)
    check_pepper(database, pepper)
    store, private, keys = open_places(database, settings)
    return Scheduler(
        owner=f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}",
        database=database,
        store=store,
        private=private,
        keys=keys,
        signer=lambda: Signer.of(settings),
        pepper=pepper,
        session_key=session_key(settings),
        tenants=settings.served_tenants,
        notifier=publisher(settings.broker_url),
        sweep_seconds=limits.sweep_seconds,
        grace_seconds=settings.grace,
        lease_seconds=limits.lease_seconds,
    )


def run(settings: Settings, limits: Limits = LIMITS) -> None:
    """Repeat the duties until SIGTERM or SIGINT. A tick that fails is logged, and the next one tries again."""
    scheduler = retry(lambda: open_scheduler(settings, limits), tries=None)
    pulse = HeartbeatSender(scheduler.database, scheduler.owner, "scheduler", limits.lease_seconds, None)
    pulse.start()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    outbound = Outbound(loopback=settings.loopback)
    webhook_sender = WebhookSender(scheduler.database, scheduler.session_key, outbound, limits.sweep_seconds)
    webhook_sender.start()
    checks = (scheduler.database, scheduler.signer, stop)
    threading.Thread(target=keep_checking, args=checks, name="audit-check", daemon=True).start()
    count, said = 0, ""
    while not stop.is_set():
        try:
            scheduler.tick(count)
            said = ""
        except PutBack as error:  # nothing is done until somebody acts: said once
            if str(error) != said:
                said = str(error)
                log.error("%s", said)
        except Busy as error:
            log.warning("tick postponed: %s", error)
        except Exception as error:  # the next tick tries again
            every = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
            log.error("tick failed: %s", ", ".join(type(each).__name__ for each in every))
        count += 1
        stop.wait(scheduler.sweep_seconds)
    webhook_sender.stop()
    pulse.stop()
