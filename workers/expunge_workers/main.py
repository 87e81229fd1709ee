"""Entry point of the worker processes: ``python -m expunge_workers.main worker|updater|scheduler|restore``."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expunge_service.audit import Signer, read_export
from expunge_service.infra.actors import OPERATOR
from expunge_service.infra.db import Busy
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.logging import configure
from expunge_service.infra.python import keep_imported
from expunge_service.infra.settings import API_SECRETS, Settings, SettingsError, ensure_secrets
from expunge_service.infra.tracing import export_spans
from expunge_workers.runtime.part_program import PRECISE

if TYPE_CHECKING:
    from expunge_workers.app import Worker
    from expunge_workers.runtime.process import Process

WORKERS_SECRETS = ("sealing_key_file", "pepper_file")
NEEDED = {"worker": WORKERS_SECRETS, "updater": WORKERS_SECRETS, "scheduler": API_SECRETS}
"""the secrets that each process reads"""
LOOK_SECONDS = 0.5
"""from one look of an updater to the next"""


def main(arguments: list[str], limits: Limits = LIMITS) -> int:
    """Run one process until it is stopped, or a restore.

    Return 1 if it is refused, 2 for wrong arguments, 75 if its device computes no more.
    """
    os.environ |= PRECISE
    if arguments[:1] != ["restore"] and arguments not in [[name] for name in NEEDED]:
        sys.stderr.write("usage: python -m expunge_workers.main worker|updater|scheduler|restore [EXPORT...]\n")
        return 2
    try:
        settings = Settings()
        if arguments[0] == "restore":
            return _restore(settings, limits, [Path(each) for each in arguments[1:]])
        configure(settings.log_level)
        export_spans("worker")
        if settings.mode == "production":  # elsewhere the commands that set up make them; a lost pepper is not replaced
            ensure_secrets(settings, NEEDED[arguments[0]])
        return {"worker": _worker, "updater": _updater, "scheduler": _scheduler}[arguments[0]](settings, limits)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _worker(settings: Settings, limits: Limits) -> int:
    from celery.signals import worker_shutting_down  # noqa: PLC0415

    from expunge_service.infra.broker.login import refuses  # noqa: PLC0415
    from expunge_service.infra.broker.messages import queue_of  # noqa: PLC0415
    from expunge_service.infra.broker.notify import consumer  # noqa: PLC0415  (the scheduler starts without torch)
    from expunge_workers.app import Worker, register  # noqa: PLC0415
    from expunge_workers.runtime import drain  # noqa: PLC0415
    from expunge_workers.runtime.db_retry import retry  # noqa: PLC0415
    from expunge_workers.runtime.device import opened  # noqa: PLC0415
    from expunge_workers.runtime.engine import engine_of  # noqa: PLC0415
    from expunge_workers.runtime.heartbeat import HeartbeatSender  # noqa: PLC0415
    from expunge_workers.runtime.process import Process  # noqa: PLC0415

    opened(settings.device)
    engine = engine_of(settings.runner, settings.home)  # refused at the start, and not at the first training
    if engine is not None:
        engine.delete_forgotten()
    process = retry(lambda: Process.of(settings, limits), tries=None)
    pulse = HeartbeatSender.of(process, "worker")
    app = consumer(settings.broker_url)
    worker = Worker(process, pulse)
    register(app, worker)
    worker_shutting_down.connect(_stopping, weak=False)
    consuming = app.Worker(
        queues=sorted(queue_of(place) for place in process.places),
        pool="solo",
        concurrency=1,
        loglevel="WARNING",
        hostname=f"expunge-{os.getpid()}",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )

    def look_at_broker() -> None:
        pulse.broker_refuses = not _is_connected(consuming) and refuses(settings.broker_url)

    pulse.after_beats.append(look_at_broker)
    keep_imported()
    pulse.start()
    try:
        with drain.answered_by(worker.give_back):
            consuming.start()
    finally:
        pulse.stop()
        process.storage.close()
    return int(consuming.exitcode or 0)


def _is_connected(consuming: Any) -> bool:
    """Return whether Celery's worker holds a connection to the broker: it tries again for ever, and says so to its log
    alone.
    """
    connection = getattr(getattr(consuming, "consumer", None), "connection", None)
    return connection is not None and bool(connection.connected)


def _stopping(**_: object) -> None:
    """Hear from Celery, in its signal handler, that this process is to stop."""
    from expunge_workers.runtime import drain  # noqa: PLC0415

    drain.ask()


def _updater(settings: Settings, limits: Limits) -> int:
    """Carry out deletions that no worker takes, because each is busy with a preparation, perhaps for hours.

    It asks the database and not the broker, because a busy worker may hold the message. torch is loaded when there is
    something to do for the first time.
    """
    from expunge_workers.runtime import drain  # noqa: PLC0415
    from expunge_workers.runtime.db_retry import retry  # noqa: PLC0415
    from expunge_workers.runtime.heartbeat import HeartbeatSender  # noqa: PLC0415
    from expunge_workers.runtime.process import Process  # noqa: PLC0415

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain.ask)
    process = retry(lambda: Process.of(settings, limits), tries=None)
    pulse = HeartbeatSender.of(process, "updater")
    pulse.start()
    workers: list[Worker] = []

    def give_back() -> None:
        for worker in workers:
            worker.give_back()

    try:
        with drain.answered_by(give_back):
            while drain.asked() or not _deletions_wait(process):
                if not drain.sit_out(LOOK_SECONDS):
                    return 0
            from expunge_workers.app import DEVICE_BROKEN, Worker  # noqa: PLC0415
            from expunge_workers.runtime.device import opened  # noqa: PLC0415
            from expunge_workers.runtime.engine import engine_of  # noqa: PLC0415

            opened(settings.device)
            engine_of(settings.runner, settings.home)
            updater = Worker(process, pulse)
            workers.append(updater)
            keep_imported()
            while not updater.broken:
                if not (updater.update_what_waits() or drain.sit_out(LOOK_SECONDS)):
                    return 0
            return DEVICE_BROKEN
    finally:
        pulse.stop()
        process.storage.close()


def _deletions_wait(process: Process) -> bool:
    from expunge_service.queue import PATIENCE_SECONDS, select_waiting_deletions  # noqa: PLC0415

    try:
        return bool(process.storage.database.look(select_waiting_deletions(process.serves, PATIENCE_SECONDS)))
    except Busy:
        return False


def _scheduler(settings: Settings, limits: Limits) -> int:
    from expunge_workers.scheduler.run import run  # noqa: PLC0415

    keep_imported()
    run(settings, limits)
    return 0


def _restore(settings: Settings, limits: Limits, exports: list[Path]) -> int:
    """Print the report as JSON to standard output, or the reason for a refusal to standard error."""
    from expunge_service.audit import NotAuthentic  # noqa: PLC0415
    from expunge_service.infra.stores import Damaged  # noqa: PLC0415
    from expunge_workers.scheduler.restore import restore  # noqa: PLC0415
    from expunge_workers.storage import Storage  # noqa: PLC0415

    storage = Storage.of(settings, OPERATOR)
    try:
        report = restore(storage, limits.lease_seconds, Signer.of(settings), [read_export(path) for path in exports])
    except (NotAuthentic, Damaged) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        storage.close()
    sys.stdout.write(json.dumps(vars(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
