"""Metrics of the processes of the service, of the log that the scheduler checks, and of this host's disks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge.service.infra.db import now
from expunge.service.infra.limits import LIMITS
from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import AuditEntry, Heartbeat, LogCheck
from expunge.service.infra.time import ALIVE_SECONDS, SECOND

KINDS = ("worker", "scheduler")
_PLACES = ("home", "store", "private_store", "key_folder")


def disks(settings: Settings) -> Iterator[Metric]:
    """Show what is free on the disks that this process can reach; a bucket has none."""
    free = GaugeMetricFamily("expunge_disk_free_bytes", "Free on the disk of a place of the service", labels=["place"])
    for name in _PLACES:
        place = getattr(settings, name)
        with suppress(OSError):
            if isinstance(place, Path):
                free.add_metric([name], shutil.disk_usage(place).free)
    yield free
    text = "With less than this free `expunge doctor` fails"
    yield GaugeMetricFamily("expunge_disk_reserve_bytes", text, LIMITS.disk_reserve_bytes)


def processes(session: Session) -> Iterator[Metric]:
    """Show who beats, how many processes of each kind are alive, and the state of the audit log."""
    beats = GaugeMetricFamily(
        "expunge_worker_heartbeat_timestamp_seconds",
        "Last heartbeat of a worker, updater or scheduler; of none that another has replaced",
        labels=["worker"],
    )
    dropped = CounterMetricFamily(
        "expunge_messages_dropped", "Messages in the broker that were none of ours, and were dropped", labels=["worker"]
    )
    rows = session.scalars(select(Heartbeat).order_by(Heartbeat.beat_at, Heartbeat.process)).all()
    since = now(session) - ALIVE_SECONDS * SECOND
    for row in rows:
        beats.add_metric([row.process], row.beat_at / SECOND)
        if row.kind == "worker":
            dropped.add_metric([row.process], row.dropped)
    yield from (beats, dropped)
    alive = [row.kind for row in rows if row.beat_at > since]
    counts = GaugeMetricFamily("expunge_processes", "Processes that beat within the last minute", labels=["kind"])
    for kind in sorted({*KINDS, *alive}):  # without an updater a service works: nobody is to be alerted
        counts.add_metric([kind], alive.count(kind))
    yield counts
    newest = session.scalar(select(func.max(AuditEntry.log_index)))
    size = (-1 if newest is None else newest) + 1
    yield GaugeMetricFamily("expunge_audit_log_size", "Entries in the signed log", value=size)
    yield from _log_check(session)


def _log_check(session: Session) -> Iterator[Metric]:
    """Show the scheduler's last check of the audit log. Before the first one there is no value."""
    text = "When the scheduler last checked the whole audit log"
    checked_at = GaugeMetricFamily("expunge_audit_log_checked_timestamp_seconds", text)
    text = "1: the last check of the audit log found no fault; 0: the log was tampered with"
    verified = GaugeMetricFamily("expunge_audit_log_verified", text)
    check = session.get(LogCheck, 1)
    if check is not None:
        checked_at.add_metric([], check.checked_at / SECOND)
        verified.add_metric([], int(check.fault is None))
    yield from (checked_at, verified)
