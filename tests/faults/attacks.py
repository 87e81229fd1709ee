"""What is done to a running installation: every attack harms it, mends it, and leaves its promises to be judged.

All of them start processes, so they run in the main thread.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import redis

from tests.faults.sites import LEASE_SECONDS, Site

Attack = Callable[[Site], None]


def kill_api(site: Site) -> None:
    site.stack.kill("api")
    site.mend()


def kill_worker(site: Site) -> None:
    site.stack.kill("worker")
    site.mend()


def kill_both_workers(site: Site) -> None:
    site.stack.kill("worker")
    site.stack.kill("worker-2")
    site.mend()


def kill_scheduler(site: Site) -> None:
    site.stack.kill("scheduler")
    site.mend()


def kill_everything(site: Site) -> None:
    for name in site.stack.processes:
        site.stack.kill(name)
    site.mend()


def freeze_worker(site: Site) -> None:
    """Stop a worker until its lease is over and resume it: by then another worker has its model."""
    freeze(site, "worker", LEASE_SECONDS + 1.5)


def freeze(site: Site, name: str, seconds: float) -> None:
    process = site.stack.processes[name].process
    if process is None or process.poll() is not None:
        return
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGCONT)


def forget_messages(site: Site) -> None:
    """Empty the broker: FLUSHALL, or delete every message file."""
    if site.redis is not None:
        with redis.Redis.from_url(site.redis.url) as client:
            client.flushall()
        return
    folder = Path(site.stack.settings.broker_url.removeprefix("filesystem://"))
    for message in folder.rglob("*.msg"):
        message.unlink(missing_ok=True)


def kill_redis(site: Site) -> None:
    assert site.redis is not None
    site.redis.restart()


def terminate_backends(site: Site) -> None:
    """Terminate every database session of the installation, many in the middle of a transaction."""
    assert site.postgres is not None
    sessions = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname LIKE 'expunge_%'"
    site.postgres.execute(f"SELECT pg_terminate_backend(pid) {sessions}")


def restart_postgres(site: Site) -> None:
    assert site.postgres is not None
    site.postgres.restart()


ANYWHERE: tuple[Attack, ...] = (
    kill_api,
    kill_worker,
    kill_both_workers,
    kill_scheduler,
    kill_everything,
    freeze_worker,
    forget_messages,
)
ON_SERVERS: tuple[Attack, ...] = (kill_redis, terminate_backends, restart_postgres)


def attacks_on(site: Site, chance: random.Random) -> list[Attack]:
    """Return every attack that the installation has a place for, in random order."""
    chosen = [*ANYWHERE, *(ON_SERVERS if site.postgres is not None else ())]
    chance.shuffle(chosen)
    return chosen
