"""CPU seconds to start: ``expunge up`` until its first 202, and commands of the CLI; each the median of five.

Of ``up`` there are two: supervisor and API, without the worker's torch; and all of its processes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from expunge_client.cli.client import Account

RUNS = 5
TICKS = os.sysconf("SC_CLK_TCK")


def rows() -> Iterator[dict[str, Any]]:
    """Yield both figures."""
    commands = [of_a_command() for _ in range(RUNS)]
    yield row("start: expunge models list", median(commands), 0.3, all=commands)
    helps = [of_the_help() for _ in range(RUNS)]
    yield row("start: expunge --help", median(helps), 0.2, all=helps)
    starts = [of_the_service() for _ in range(RUNS)]
    yield row("start: expunge up to the first 202", median(start for start, _ in starts), 2.5, all=starts)
    yield row(
        "start: all processes of expunge up at the first 202", median(every for _, every in starts), 5, all=starts
    )


def row(name: str, value: float, target: float, **sides: object) -> dict[str, Any]:
    return {"name": name, "value": value, "target": target, "unit": "CPU s", "met": value <= target, "sides": sides}


def of_a_command() -> float:
    """Return what a command costs that reads its settings and finds no service."""
    with tempfile.TemporaryDirectory() as home:
        said, seconds = command(Path(home), "models", "list")
    if "No service is configured" not in said:
        raise RuntimeError(f"expunge models list said: {said}")
    return seconds


def of_the_help() -> float:
    with tempfile.TemporaryDirectory() as home:
        said, seconds = command(Path(home), "--help")
    if "Everyday:" not in said:
        raise RuntimeError(f"expunge --help said: {said}")
    return seconds


def command(home: Path, *words: str) -> tuple[str, float]:
    """Return what a command said, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    called = [sys.executable, "-m", "expunge_client.cli.main", *words]
    done = subprocess.run(
        called, env=os.environ | {"EXPUNGE_HOME": str(home)}, capture_output=True, check=False, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout + done.stderr, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_the_service() -> tuple[float, float]:
    """Return the CPU seconds of supervisor and API, and of all processes, when the first request is accepted."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        environment = os.environ | {"EXPUNGE_HOME": str(home), "EXPUNGE_RECIPES": folder}
        command = [sys.executable, "-m", "expunge_client.cli.main", "up", "--port", "0"]
        up = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            first_202(home)
            spent = {name: cpu_seconds(pid) for name, pid in children_of(up.pid).items()}
            own = cpu_seconds(up.pid)
            return own + spent["expunge-api"], own + sum(spent.values())
        finally:
            up.terminate()
            up.wait(30)


def first_202(home: Path, patience: float = 120.0) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        account = Account.read(home)
        if account is not None:
            headers = {"Authorization": f"Bearer {account.api_key}", "Idempotency-Key": "first"}
            try:
                url = f"{account.url}/v1/deletion-requests"
                answer = httpx.post(url, json={"subject_id": "ada"}, headers=headers, trust_env=False)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 202:
                return
        time.sleep(0.05)
    raise TimeoutError(f"no request was accepted within {patience:g} s")


def children_of(parent: int) -> dict[str, int]:
    """Return the processes that ``parent`` started, by the name that ps shows."""
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {Path(f"/proc/{pid}/comm").read_text().strip(): int(pid) for pid in pids}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    for each in rows():
        print(each, flush=True)
