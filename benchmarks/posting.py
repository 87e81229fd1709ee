"""Clients that post deletions, and the server process that they call.

The clients are plain sockets in this process: a heavy client would hide what differs between two servers.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
ANSWER_SECONDS = 60.0
STOP_SECONDS = 30.0
ACCEPTED, BUSY = 202, 503


@dataclass(frozen=True)
class Endpoint:
    """Where deletions are posted, and the key that opens it."""

    port: int
    path: str
    key: str

    def message(self, subject: str) -> bytes:
        body = json.dumps({"subject_id": subject})
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        keys = f"Authorization: Bearer {self.key}\r\nIdempotency-Key: {secrets.token_hex(12)}\r\n"
        return f"{head}{keys}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@dataclass
class Posted:
    """What the calls of several clients came to: the seconds of each that was accepted, and how many got a 503."""

    seconds: list[float] = field(default_factory=list)
    busy: int = 0


def post(endpoint: Endpoint, subjects: Iterable[str], clients: int = 1, until: float = math.inf) -> Posted:
    """Post deletions by several clients at once, until there is no subject left or ``time.perf_counter`` is ``until``.

    Raises RuntimeError for an answer that is neither a 202 nor a 503.
    """
    posted, shared = Posted(), iter(subjects)

    async def together() -> None:
        await asyncio.gather(*(_client(endpoint, shared, posted, until) for _ in range(clients)))

    asyncio.run(together())
    return posted


async def _client(endpoint: Endpoint, subjects: Iterator[str], posted: Posted, until: float) -> None:
    """One connection, one call after the other; what got a 503 is posted again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    for subject in subjects:
        status = BUSY
        while status == BUSY and (start := time.perf_counter()) < until:
            writer.write(endpoint.message(subject))
            status = await _status(reader)
            if status == ACCEPTED:
                posted.seconds.append(time.perf_counter() - start)
            elif status == BUSY:
                posted.busy += 1
            else:
                raise RuntimeError(f"the server answered {status}")
        if time.perf_counter() >= until:
            break
    writer.close()


async def _status(reader: asyncio.StreamReader) -> int:
    """Read one answer to its end and return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1])


@contextmanager
def process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[int]:
    """Run a command of this checkout until the block ends, and yield its process id; what it says goes into the log."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            command, env=os.environ | environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield started.pid
    finally:
        started.terminate()
        try:
            started.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def serving(command: Sequence[str], port: int, environment: Mapping[str, str], log: Path) -> Iterator[int]:
    """Run a server on this port, and yield its process id once it listens. Raises RuntimeError."""
    with process([*command, "--port", str(port)], environment, log) as server:
        deadline = time.monotonic() + ANSWER_SECONDS
        while not listens(port):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{command} does not listen:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield server


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
