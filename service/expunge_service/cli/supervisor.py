"""Child processes of ``expunge up``: started, watched, restarted when they die, stopped together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from expunge_service.cli.forked import Fork, die_with_parent
from expunge_service.infra.python import PYTHON

STOP_SECONDS = 10.0
HEALTHY_SECONDS = 10.0
"""a child that lived this long is restarted at once; one that dies sooner waits longer each time"""
LONGEST_WAIT_SECONDS = 30.0

UUID = re.compile(r"UUID: ((GPU|MIG)-[^)\s]+)\)")

Say = Callable[[str], None]


@dataclass
class Child:
    """One process with a log file. It dies with us (Linux): no orphan keeps a port or a lease."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    forked: bool = False
    """whether it uses the imports of this process; its command is then ``PYTHON -m MODULE ...``"""
    process: subprocess.Popen[bytes] | Fork | None = field(default=None, repr=False)
    started_at: float = 0.0

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self.process = self._fork(output.fileno()) if self.forked else self._open(output)
        self.started_at = time.monotonic()

    def _fork(self, output: int) -> Fork:
        _, module, *arguments = self.command[len(PYTHON) :]
        return Fork(self.name, module, arguments, self.environment, output)

    def _open(self, output: BinaryIO) -> subprocess.Popen[bytes]:
        # a separate session: Ctrl-C reaches only us, and we stop the children in order
        return subprocess.Popen(  # noqa: S603 (the command is ours)
            self.command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509 (no threads here)
        )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def ask_to_stop(self) -> None:
        if self.alive and self.process:
            self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL and wait: no part of the process runs when this returns."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        self.ask_to_stop()
        self.await_stop(seconds)

    def await_stop(self, seconds: float) -> None:
        if not self.process:
            return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self, lines: int = 15) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


def children(
    home: Path, host: str, port: int, environment: Mapping[str, str] = os.environ, *, forked: bool = False
) -> list[Child]:
    """Return the four processes of one installation, not yet started. Logs are written to ``home/logs``."""
    commands = {
        "api": [*PYTHON, "-m", "expunge_service.serve", "--host", host, "--port", str(port)],
        "worker": [*PYTHON, "-m", "expunge_workers.main", "worker"],
        "updater": [*PYTHON, "-m", "expunge_workers.main", "updater"],
        "scheduler": [*PYTHON, "-m", "expunge_workers.main", "scheduler"],
    }
    logs = home / "logs"
    return [Child(name, command, environment, logs / f"{name}.log", forked) for name, command in commands.items()]


def cards(listing: str) -> list[str]:
    """Return the UUIDs of the cards that ``nvidia-smi -L`` lists; a card that is sliced gives those of its slices."""
    found: dict[str, list[str]] = {}
    for uuid, kind in UUID.findall(listing):
        if kind == "GPU":
            found[uuid] = []
        elif found:
            found[next(reversed(found))].append(uuid)
    return [each for card, slices in found.items() for each in slices or [card]]


def card_workers(home: Path, uuids: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[Child]:
    """Return a worker for each card, not yet started. It sees that card alone."""
    command = [*PYTHON, "-m", "expunge_workers.main", "worker"]
    return [
        Child(
            f"worker {uuid}",
            command,
            {**environment, "CUDA_VISIBLE_DEVICES": uuid, "EXPUNGE_DEVICE": "cuda"},
            home / "logs" / f"worker-{uuid}.log",
        )
        for uuid in uuids
    ]


class Supervisor:
    """Keeps children running until ``stop``. Not for threads: it uses signals and preexec."""

    def __init__(self, members: Sequence[Child], say: Say) -> None:
        self.members = members
        self._say = say
        self._quick_deaths = dict.fromkeys((child.name for child in members), 0)
        self._restart_at: dict[str, float] = {}

    def start(self) -> None:
        for child in self.members:
            child.start()

    def watch(self) -> None:
        """Check each child once: report those that died, and restart those whose waiting time is over."""
        for child in self.members:
            if child.alive:
                continue
            if child.name not in self._restart_at:
                self._schedule(child)
            elif time.monotonic() >= self._restart_at[child.name]:
                del self._restart_at[child.name]
                child.start()

    def stop(self) -> None:
        """Ask all to stop, give them ten seconds together, kill the rest."""
        deadline = time.monotonic() + STOP_SECONDS
        for child in self.members:
            child.ask_to_stop()
        for child in self.members:
            child.await_stop(max(0.1, deadline - time.monotonic()))

    def _schedule(self, child: Child) -> None:
        lived = time.monotonic() - child.started_at
        deaths = 0 if lived >= HEALTHY_SECONDS else self._quick_deaths[child.name] + 1
        self._quick_deaths[child.name] = deaths
        wait = 0.0 if deaths == 0 else min(LONGEST_WAIT_SECONDS, 2.0 ** (deaths - 1))
        self._restart_at[child.name] = time.monotonic() + wait
        self._say(f"{child.name} ended ({_manner(child.exit_code)}); starting it again in {wait:g} s. Log: {child.log}")


def _manner(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
