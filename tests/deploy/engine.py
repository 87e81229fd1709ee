"""What the engine says and does of single containers and volumes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.deploy.programs import ran, tried


def inspect(container: str) -> dict[str, Any]:
    """Return what the engine knows of a container."""
    (found,) = json.loads(ran("docker", "inspect", container))
    return dict(found)


def killed(container: str) -> None:
    """Kill the container's first process by SIGKILL, from outside: the engine takes it for a crash."""
    os.kill(inspect(container)["State"]["Pid"], signal.SIGKILL)


def stopped(container: str) -> tuple[int, float]:
    """Stop the container as `docker stop` does, in the time that the compose file gives it.

    Return its exit code, which is 137 where it had to be killed, and how many seconds it took.
    """
    begun = time.monotonic()
    ran("docker", "stop", container)
    return int(inspect(container)["State"]["ExitCode"]), time.monotonic() - begun


def starts(container: str) -> int:
    """Return how often the engine started the container again by itself."""
    return int(inspect(container)["RestartCount"])


def log(container: str) -> str:
    """Return everything that the container wrote, with the engine's timestamps."""
    done = tried("docker", "logs", "--timestamps", container)
    return done.stdout + done.stderr


def volume_folder(volume: str) -> Path:
    """Return where the engine keeps a volume's files."""
    return Path(ran("docker", "volume", "inspect", "--format", "{{.Mountpoint}}", volume).strip())
