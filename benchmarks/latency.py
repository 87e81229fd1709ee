"""From POST to the published version on an idle system, and what the API process costs before its first call.

API, worker and scheduler run as processes of their own over SQLite, once with Redis as the broker and once with the
filesystem. One client posts a deletion, waits until the database has the next version, rests, and posts again; between
two posts the floor is measured: one checkpoint's bytes written durably and one committed row.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from benchmarks.crowd import write_crowd
from benchmarks.process_tree import cpu_seconds
from benchmarks.release import least_bytes, timed
from expunge_service.infra.db import Database
from expunge_service.infra.settings import Settings, ensure_secrets
from expunge_service.infra.tables import Version
from tests.harness import servers, stack
from tests.harness.process import ANY_DISTANCE

POSTS = 40
REST_SECONDS = 0.3
FEATURES, CLASSES = 2184, 10
STARTS = 5
PATIENCE_SECONDS = 90.0
Row = dict[str, Any]


def rows() -> Iterator[Row]:
    for broker in ("Redis", "the filesystem"):
        yield from latency_rows(broker)
    yield from process_rows()


def latency_rows(broker: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        home = Path(folder)
        write_crowd(home, people=POSTS + 10, features=FEATURES, classes=CLASSES)
        chosen = {"BROKER_URL": running.enter_context(servers.redis_server()).url} if broker == "Redis" else {}
        service = running.enter_context(stack.running(home / "home", home, limits=ANY_DISTANCE, **chosen))
        service.live("recipe", max_accuracy_drop=None)
        database = service.database()
        waits, floors = [], []
        for index in range(POSTS):
            floors.append(timed(lambda: least_bytes(home / "floor", database, FEATURES * CLASSES)))
            time.sleep(REST_SECONDS)
            waits.append(wait(service, database, f"p{index}", index + 2))
        database.close()
    floor, sides = statistics.median(floors), {"seconds": waits, "floor_seconds": floors}
    p50, p99 = statistics.median(waits), sorted(waits)[round(0.99 * (len(waits) - 1))]
    if broker == "Redis":
        yield row(f"POST to version over {broker}: median above the floor", 1000 * (p50 - floor), 60, "ms", sides)
        yield row(f"POST to version over {broker}: p99 above the floor", 1000 * (p99 - floor), 250, "ms", sides)
    else:
        yield row(f"POST to version over {broker}: median", 1000 * p50, 250, "ms", sides)


def wait(service: stack.Stack, database: Database, subject: str, number: int) -> float:
    """Seconds until the version of that number is committed. Raises RuntimeError where it does not come."""
    start = time.perf_counter()
    service.client.post("/v1/deletion-requests", {"subject_id": subject}, str(uuid.uuid4()))
    while time.perf_counter() < start + PATIENCE_SECONDS:
        with database.read() as session:
            if (session.scalar(select(func.max(Version.number))) or 0) >= number:
                return time.perf_counter() - start
        time.sleep(0.002)
    raise RuntimeError(f"version {number} was not published in {PATIENCE_SECONDS:g} s\n{service.logs()}")


def process_rows() -> Iterator[Row]:
    """Seconds from the start of the API's process to its first answer, its memory then, and whether it holds torch.

    The other side of the start is an empty Python process that imports FastAPI and uvicorn.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        ensure_secrets(settings)
        bare, started, computing, resident, torch = [], [], [], [], []
        for _ in range(STARTS):
            bare.append(timed(lambda: subprocess.run([sys.executable, "-c", "import fastapi, uvicorn"], check=True)))
            seconds, cpu, megabytes, loaded = started_api(folder)
            started.append(seconds)
            computing.append(cpu)
            resident.append(megabytes)
            torch.append(loaded)
    sides = {"seconds": started, "cpu_seconds": computing, "importing_fastapi_and_uvicorn": bare}
    yield row("API process: start to first answer", statistics.median(started), 1.5, "s", sides)
    yield row("API process: resident memory at its first answer", max(resident), 150, "MB", {"megabytes": resident})
    yield row("API process: starts that loaded torch", sum(torch), 0, "starts", {"starts": STARTS})


def started_api(home: str) -> tuple[float, float, float, bool]:
    """Wall-clock and CPU seconds to the first answer, resident megabytes, and whether torch is loaded."""
    port = servers.free_port()
    command = [sys.executable, "-m", "expunge_service.serve", "--port", str(port)]
    environment = os.environ | {"EXPUNGE_HOME": home}
    start = time.perf_counter()
    with subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[1], stderr=subprocess.PIPE) as process:
        try:
            while not answers(port):
                if process.poll() is not None or time.perf_counter() > start + PATIENCE_SECONDS:
                    raise RuntimeError("the API did not start")
                time.sleep(0.01)
            seconds = time.perf_counter() - start
            cpu = cpu_seconds(process.pid)
            memory = Path(f"/proc/{process.pid}/status").read_text().split("VmRSS:")[1].split()[0]
            loaded = "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
        finally:
            process.terminate()
    return seconds, cpu, int(memory) * 1024 / 1e6, loaded


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def row(name: str, value: float, most: float, unit: str, sides: dict[str, Any]) -> Row:
    return {
        "name": name,
        "value": value,
        "target": f"<= {most:g}",
        "unit": unit,
        "met": value <= most,
        "sides": sides,
    }
