"""The entry of the worker and keeper processes: ``python -m workers.main worker|keeper``."""

from __future__ import annotations

import os
import sys

from service.logs import configure
from service.settings import Settings


def main(arguments: list[str]) -> int:
    """Run one process until it is told to stop. 2 where the arguments are wrong."""
    if arguments not in (["worker"], ["keeper"]):
        sys.stderr.write("usage: python -m workers.main worker|keeper\n")
        return 2
    settings = Settings()
    configure(settings.log_level)
    return _worker(settings) if arguments == ["worker"] else _keeper(settings)


def _worker(settings: Settings) -> int:
    from service import queue  # noqa: PLC0415  (the keeper starts without torch)
    from workers.app import Worker, register  # noqa: PLC0415
    from workers.pulse import Pulse  # noqa: PLC0415
    from workers.workshop import open_workshop  # noqa: PLC0415

    workshop = open_workshop(settings)
    pulse = Pulse(workshop.database, workshop.owner, "worker", settings.lease_seconds, settings.device)
    app = queue.consumer(settings.broker_url)
    register(app, Worker(workshop, pulse))
    pulse.start()
    try:
        app.Worker(
            pool="solo",
            concurrency=1,
            loglevel="WARNING",
            hostname=f"expunge-{os.getpid()}",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            quiet=True,
        ).start()
    finally:
        pulse.stop()
        workshop.close()
    return 0


def _keeper(settings: Settings) -> int:
    from workers.keeper import run  # noqa: PLC0415

    run(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
