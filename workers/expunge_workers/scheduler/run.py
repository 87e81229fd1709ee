"""The scheduler: a small separate process without torch. It repairs what others lost and completes what they began.

One is active at a time, under a lease; a second one waits to replace it. Every duty can be repeated, so the next tick
completes what a scheduler that dies leaves half done.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from celery import Celery
from sqlalchemy import ColumnElement, Select, delete, false, func, select
from sqlalchemy.orm import Session

from expunge_service import requests
from expunge_service.access import check_pepper
from expunge_service.audit import (
    EPOCHS,
    HEADS,
    LOG_WAITS,
    UPDATES,
    NotAuthentic,
    Signer,
    Witness,
    extend,
    keep_checking,
    record,
)
from expunge_service.certificates import UNISSUED, issue_due
from expunge_service.infra.actors import SCHEDULER
from expunge_service.infra.broker.notify import notify_one, publisher
from expunge_service.infra.db import NOW, Busy, Database, now
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings, SettingsError, session_key
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import (
    DeletionRequest,
    Generation,
    Heartbeat,
    IdempotencyKey,
    Lease,
    Model,
    Task,
    TrainedPart,
    Version,
)
from expunge_service.infra.time import SECOND
from expunge_service.models import (
    FIGURES,
    MOVED_ON,
    UNCONFIRMED,
    UNPURGED,
    UNTALLIED,
    Figures,
    Guard,
    PutBack,
    complete_waiting,
    note_deleted,
    note_swept,
    sweep_store,
    tally,
)
from expunge_service.queue import (
    LONG_DUE,
    OUTLIVED,
    WITHOUT_WORKER,
    TakenLease,
    block_untaken,
    drop_messages,
    in_force,
    mark_notified,
    queue_taken,
    renew,
    shorten_waits,
    take,
    unnotified,
)
from expunge_service.requests import DUE_SOON, LARGE_AND_DUE, Reason, announce_due_soon, settle
from expunge_workers.runtime.db_retry import retry
from expunge_workers.runtime.heartbeat import HeartbeatSender
from expunge_workers.scheduler.ssrf_guard import Outbound
from expunge_workers.scheduler.webhook_sender import WebhookSender
from expunge_workers.storage import (
    OVER,
    STARTS,
    KeyStore,
    confirm_committed,
    delete_ended_generations,
    ended_lately,
    erase_due,
    erase_ended,
    erase_lost,
    erasures_wait,
    open_places,
)

LEASE = "scheduler"
ORPHAN_SECONDS = 3600.0
SILENT_SECONDS = 3600
"""A process without a heartbeat for so long is dead. Its row is deleted, which ends the alarm about it."""
PORTIONS = 10
"""of a backlog, in one tick"""
BACKLOG = 50
"""what a portion of a backlog counts at least; after a smaller one there is nothing but what came meanwhile"""
EVERYTHING_EVERY = 60
"""ticks between two rounds of every duty, also of those that search the stores for files without a use"""

TALLY_EVERY = 10
"""ticks between two additions to the tallies"""
UNTAKEN_EVERY = 5
"""ticks between two looks for models that no living process takes"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Duty:
    """Something that the scheduler does. Where ``due`` is false, ``do`` would find no work."""

    due: ColumnElement[bool]
    do: Callable[[], object]
    irrevocable: bool = False
    """done only where the store agrees with the database"""
    every: int = 1
    """ticks from one time to the next"""


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
    """the tenants of ``keys``; None: all"""
    notifier: Celery
    sweep_seconds: float
    grace_seconds: float
    lease_seconds: float

    @cached_property
    def guard(self) -> Guard:
        """Return what compares the database with the store."""
        return Guard(self.database, self.store.folder)

    @cached_property
    def duties(self) -> list[Duty]:
        """Return the duties in their order: later ones complete what earlier ones begin."""
        database, never = self.database, false()
        return [
            Duty(LOG_WAITS, lambda: extend_log(database, self.signer(), self.guard.witness), irrevocable=True),
            Duty(
                erasures_wait(self.tenants),
                lambda: erase_due(database, self.private, self.keys, self.guard.witness, self.tenants),
                irrevocable=True,
            ),
            Duty(
                ended_lately(self.tenants).exists(),
                lambda: erase_ended(database, self.private, self.keys, self.tenants),
                irrevocable=True,
            ),
            Duty(UNISSUED.exists(), lambda: issue(database, self.signer(), self.pepper), irrevocable=True),
            Duty(
                retired_before(self.grace_seconds).exists(),
                lambda: purge(database, self.store, self.guard.witness, self.grace_seconds),
                irrevocable=True,
            ),
            Duty(OVER.exists(), lambda: delete_ended_generations(database), irrevocable=True),
            # what withdraws a figure writes to the log too
            Duty(LOG_WAITS, lambda: Figures(self.store.folder).sweep(database), irrevocable=True),
            Duty(never, lambda: sweep_files(database, self.store, self.private), irrevocable=True),
            Duty(never, lambda: erase_lost(database, self.keys), irrevocable=True),
            Duty(never, lambda: self.keys.sweep(ORPHAN_SECONDS), irrevocable=True),
            Duty(select(Model.id).where(unnotified(NOW)).exists(), lambda: sweep(database, self.notifier)),
            Duty(select(Task.id).where(LONG_DUE).exists(), lambda: block_untaken(database), every=UNTAKEN_EVERY),
            Duty(select(Task.id).where(WITHOUT_WORKER).exists(), lambda: queue_taken(database), every=UNTAKEN_EVERY),
            Duty(UNMATCHED.exists(), lambda: settle_unmatched(database)),
            Duty(MOVED_ON.exists(), lambda: complete_served(database)),
            Duty(select(Task.id).where(LARGE_AND_DUE).exists(), lambda: retry_large(database)),
            Duty(DUE_SOON.exists(), lambda: announce_due_soon(database)),
            Duty(EXPIRED, lambda: expire_idempotency(database)),
            Duty(select(Heartbeat.process).where(SILENT).exists(), lambda: forget_processes(database)),
            Duty(OUTLIVED.exists(), lambda: drop_messages(database)),
            Duty(UNTALLIED, lambda: _in_portions(lambda: tally(database)), every=TALLY_EVERY),
            Duty(never, database.truncate_log),
        ]

    @cached_property
    def look(self) -> Select[*tuple[bool, ...]]:
        """Return a SELECT, built once: whether a restored backup waits, the lease's holder, which duties are due."""
        lease = select(Lease.name).where(Lease.name == LEASE, in_force(NOW))
        ours = (Lease.owner == self.owner) & (Lease.token != 0)
        half = int(self.lease_seconds * SECOND / 2)
        return select(
            UNCONFIRMED.exists(),
            lease.where(~ours).exists(),
            lease.where(ours, Lease.expires_at > NOW + half).exists(),
            *(duty.due for duty in self.duties),
        )

    def tick(self, count: int = 0) -> bool:
        """Do one round of duties. False: another scheduler is active, or a restored backup waits for the operator.

        A tick without work is one statement, but for the lease, which is renewed at half its time. Every
        ``EVERYTHING_EVERY`` ticks each duty is done unasked. While the store does not answer, what cannot be undone
        waits. Raises PutBack, Busy, ExceptionGroup.
        """
        ((unconfirmed, taken, held, *looks),) = self.database.look(self.look)
        if unconfirmed or taken:
            return False
        everything = count % EVERYTHING_EVERY == 0
        due = [
            duty
            for duty, something in zip(self.duties, looks, strict=True)
            if everything or (something and count % duty.every == 0)
        ]
        if (due or not held) and not hold_lease(self.database, self.owner, self.lease_seconds):
            return False
        if due:
            carry_out(duty.do for duty in self._allowed(due))
        return True

    def _allowed(self, due: Sequence[Duty]) -> Sequence[Duty]:
        """Return those that may be done while the store does, or does not, answer. Raises PutBack."""
        try:
            self.guard.look()
        except OSError as error:
            log.warning("The store does not answer: %s", error)
            return [duty for duty in due if not duty.irrevocable]
        return due


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
    """Take or renew the scheduler's lease, by the database's clock; return whether it is ours.

    The moment of the last renewal tells that the clock went back by more than a lease.
    """
    with database.write() as session:
        at = now(session)
        before = session.scalar(select(Lease.renewed_at).where(Lease.name == LEASE)) or 0
        ours = select(Lease.token).where(Lease.name == LEASE, Lease.owner == owner, Lease.token != 0)
        token = session.scalar(ours)
        renewed = token is not None and renew(session, TakenLease(LEASE, token), at, seconds)
        active = renewed or take(session, LEASE, owner, at, seconds) is not None
        if active and before > at + int(seconds * SECOND):
            log.warning("The database's clock went back by %.0f s: waits are counted anew.", (before - at) / SECOND)
            shorten_waits(session, at)
        return active


def sweep(database: Database, notifier: Celery) -> int:
    """Notify workers of every model with due work that is not claimed: a notification or a worker was lost."""
    with database.write() as session:
        models = mark_notified(session)
    for model_id, places in models.items():
        for place in places:
            notify_one(notifier, model_id, place)
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
    """Do ``some`` again while a backlog waits, ``PORTIONS`` times at most; return the sum of its counts.

    A backlog is done in portions because other writers wait for a portion at most, and other duties for all of them.
    """
    total = 0
    for _ in range(PORTIONS):
        count = some()
        total += count
        if count < BACKLOG:
            break
    return total


def retired_before(grace_seconds: float) -> Select[str, str, str]:
    """Select the versions that were retired so long ago."""
    columns = select(Version.id, Version.model_id, Version.checkpoint).where(Version.status == "retired")
    return columns.where(Version.retired_at <= NOW - int(grace_seconds * SECOND))


def purge(database: Database, store: Store, witness: Witness, grace_seconds: float) -> int:
    """Delete the files of versions that were retired long enough ago, unless another version shares them."""
    with database.read() as session:
        due = session.execute(retired_before(grace_seconds)).all()
    for version in due:
        follows = (Version.model_id == version.model_id, Version.parent_id == version.id)
        with database.write() as session:
            successors = session.scalars(select(Version.id).where(*follows)).all()
            confirm_committed(session, witness, successors)
            free = note_swept(session, [version.checkpoint], apart_from=version.id)
        for digest in free:
            store.delete(digest)
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


UNMATCHED = select(DeletionRequest.id).where(
    DeletionRequest.status.in_(("queued", "running", "blocked")),
    func.coalesce(DeletionRequest.reason, "") != Reason.UNVERIFIED,
    DeletionRequest.near.is_(None),
    ~select(Task.id).where(Task.request_id == DeletionRequest.id).exists(),
)
"""the open requests that have no task, except those that wait for a decision"""
EXPIRED = select(func.min(IdempotencyKey.expires_at)).scalar_subquery() <= NOW
"""whether the first stored answer has expired"""
SILENT = Heartbeat.beat_at <= NOW - SILENT_SECONDS * SECOND
"""whether a process died long enough ago for the alarm to have fired"""


def settle_unmatched(database: Database) -> int:
    """Settle those requests."""
    with database.write() as session:
        return len(settle(session, session.scalars(UNMATCHED).all()))


def complete_served(database: Database) -> int:
    """Settle the tasks that waited for consumers, where every known consumer serves a newer version."""
    with database.write() as session:
        return len(complete_waiting(session))


def retry_large(database: Database) -> int:
    """Retry each unusually large request after its waiting time."""
    with database.write() as session:
        return len(requests.retry_large(session))


def expire_idempotency(database: Database) -> int:
    """Delete stored answers that have expired."""
    with database.write() as session:
        gone = delete(IdempotencyKey).where(IdempotencyKey.expires_at <= now(session))
        return len(session.execute(gone.returning(IdempotencyKey.key)).all())


def forget_processes(database: Database) -> int:
    """Delete the heartbeats of those processes."""
    with database.write() as session:
        return len(session.execute(delete(Heartbeat).where(SILENT).returning(Heartbeat.process)).all())


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
    """Return the digests of the states that work units still start from, and of what parts leave."""
    building = session.scalars(select(Generation.manifest).where(Generation.status.in_(("preparing", "candidate"))))
    notes = (frozen.get(name) for frozen in building if frozen for name in STARTS)
    return {note["state"] for note in notes if note} | set(session.scalars(select(TrainedPart.result)))


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


def reported(error: Exception) -> str:
    """Return the sentence of a wrong setting, which has its remedy; of an error of the system its name (``ENOSPC``);
    and of another the type alone.
    """
    if isinstance(error, SettingsError):
        return str(error)
    return errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)


def run(settings: Settings, limits: Limits = LIMITS) -> None:
    """Repeat the duties until SIGTERM or SIGINT. A tick that fails is logged, and the next one tries again."""
    scheduler = retry(lambda: open_scheduler(settings, limits), tries=None)
    file = settings.heartbeat_file
    pulse = HeartbeatSender(scheduler.database, scheduler.owner, "scheduler", limits.lease_seconds, file=file)
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
        except PutBack as error:  # nothing is done until an operator acts: said once
            if str(error) != said:
                said = str(error)
                log.error("%s", said)
        except Busy as error:
            log.warning("tick postponed: %s", error)
        except Exception as error:  # the next tick tries again
            every = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
            log.error("tick failed: %s", ", ".join(reported(each) for each in every))
        count += 1
        stop.wait(scheduler.sweep_seconds)
    webhook_sender.stop()
    pulse.stop()
