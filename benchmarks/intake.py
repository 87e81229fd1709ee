"""Intake beside a bare FastAPI route that inserts one row into the same database, by 1 and by 16 clients.

Both servers run as processes of their own under the same uvicorn, on one database with ``fsync`` on. For a window of
seconds all clients call one of them, then the other, so that a busy machine slows both. The clients are plain sockets
in this process: a heavy one would hide the difference. Every subject is known to one live model, so that each call
writes a request, a suppression entry, a task, an audit entry and the idempotency key.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.release import live
from expunge.service.access import Scope, create_key
from tests.harness import servers

CLIENTS = (1, 16)
ROUNDS = 7
MOST_CPU, LEAST_RATE = 4.0, 0.3
WINDOW_SECONDS = 3.0
PEOPLE = 2000
UNLIMITED = {"EXPUNGE_RATE": "1000000"}
"""one key stands for all clients here"""
Row = dict[str, Any]


@dataclass
class Side:
    """One server: its address, what a client sends it, and what each window gave."""

    port: int
    path: str
    headers: str
    process: subprocess.Popen[bytes]
    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def message(self, number: int) -> bytes:
        body = json.dumps({"subject_id": f"p{number % PEOPLE}"})
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        key = f"Idempotency-Key: {secrets.token_hex(12)}\r\n"
        return f"{head}{self.headers}{key}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def rows() -> Iterator[Row]:
    for kind in ("PostgreSQL", "SQLite"):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
            url = running.enter_context(database(kind, Path(folder)))
            sides = {name: running.enter_context(side) for name, side in both(Path(folder), url).items()}
            for clients in CLIENTS:
                yield from rows_of(kind, clients, *measured(sides["intake"], sides["bare"], clients))


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh database whose commits are durable."""
    if kind == "SQLite":
        yield f"sqlite:///{folder / 'intake.db'}"
        return
    with servers.postgres(fsync="on") as server, server.database() as url:
        yield url


def both(folder: Path, url: str) -> dict[str, Any]:
    process, _ = live(folder, database_url=url, people=PEOPLE, features=4, classes=2)
    with process.storage.database.write() as session:
        key = create_key(session, process.storage.pepper, label="bench", scopes=[Scope.DELETIONS_WRITE]).secret
    process.storage.close()
    ours = {"EXPUNGE_HOME": str(folder / "home"), "EXPUNGE_DATABASE_URL": url, **UNLIMITED}
    return {
        "intake": serving(
            "expunge.service.api.app:create_app",
            "/v1/deletion-requests",
            f"Authorization: Bearer {key}\r\n",
            ours,
            "--factory",
        ),
        "bare": serving("benchmarks.bare:app", "/orders", "", {"BARE_DATABASE_URL": url}),
    }


@contextmanager
def serving(app: str, path: str, headers: str, environment: dict[str, str], *more: str) -> Iterator[Side]:
    port = servers.free_port()
    command = [sys.executable, "-m", "uvicorn", app, *more, "--port", str(port), "--no-access-log"]
    process = subprocess.Popen(
        [*command, "--log-level", "warning"], env=os.environ | environment, cwd=Path(__file__).parents[1]
    )
    try:
        await_answer(process, f"http://127.0.0.1:{port}/openapi.json")
        yield Side(port, path, headers, process)
    finally:
        process.terminate()
        process.wait()


def await_answer(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(url, timeout=2, trust_env=False)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args} does not answer")


def measured(ours: Side, bare: Side, clients: int) -> tuple[Side, Side]:
    """Alternating windows; the first of each warms up and does not count."""
    ours, bare = (replace(side, rates=[], cpu_ms=[], latencies=[]) for side in (ours, bare))
    for _ in range(ROUNDS + 1):
        for side in (bare, ours):
            asyncio.run(window(side, clients))
    return ours, bare


async def window(side: Side, clients: int) -> None:
    before, start = cpu_seconds(side.process.pid), time.perf_counter()
    latencies: list[float] = []
    await asyncio.gather(*(client(side, start + WINDOW_SECONDS, latencies) for _ in range(clients)))
    taken = time.perf_counter() - start
    side.rates.append(len(latencies) / taken)
    side.cpu_ms.append((cpu_seconds(side.process.pid) - before) * 1000 / len(latencies))
    side.latencies = latencies


async def client(side: Side, until: float, latencies: list[float]) -> None:
    """One connection, one call after the other. Raises RuntimeError for any answer but 202."""
    reader, writer = await asyncio.open_connection("127.0.0.1", side.port)
    number = secrets.randbelow(PEOPLE)
    while (start := time.perf_counter()) < until:
        writer.write(side.message(number))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 202"):
            raise RuntimeError(f"the server answered {head.splitlines()[0]!r}")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        latencies.append(time.perf_counter() - start)
        number += 1
    writer.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of the process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rows_of(kind: str, clients: int, ours: Side, bare: Side) -> Iterator[Row]:
    """The medians over the windows; in each the two sides ran one after the other."""
    sides = {
        "intake_per_second": ours.rates[1:],
        "bare_per_second": bare.rates[1:],
        "intake_cpu_ms": ours.cpu_ms[1:],
        "bare_cpu_ms": bare.cpu_ms[1:],
        "intake_median_ms": statistics.median(ours.latencies) * 1000,
        "bare_median_ms": statistics.median(bare.latencies) * 1000,
    }
    name = f"intake / bare route, {kind}, {clients} client{'s' if clients > 1 else ''}"
    rate, cpu = (
        statistics.median(mine / theirs for mine, theirs in zip(first[1:], second[1:], strict=True))
        for first, second in ((ours.rates, bare.rates), (ours.cpu_ms, bare.cpu_ms))
    )
    met = {"target": f"<= {MOST_CPU:g}", "met": cpu <= MOST_CPU}
    yield {"name": f"{name}: CPU", "value": cpu, "unit": "CPU ratio", "sides": sides, **met}
    met = {"target": f">= {LEAST_RATE:g}", "met": rate >= LEAST_RATE}
    yield {"name": name, "value": rate, "unit": "ratio of requests/s", "sides": sides, **met}


if __name__ == "__main__":
    for measured_row in rows():
        print(json.dumps(measured_row))
