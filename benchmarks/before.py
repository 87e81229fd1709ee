"""An update on PostgreSQL and ``expunge doctor``, over the same on 23 November 2026, in one run.

The update also over that of the last commit before versions commit to what the tables hold.

Both trees run turn by turn, each in processes of its own, with the benchmark ``release`` of its time: one worker, a
model of 21,840 weights without a guarantee. An update is counted from its claim to its destroyed keys, with what
PostgreSQL's processes spend on it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

BEFORE = "fb5b3829"
"""the last commit of that day"""
BEFORE_COMMITMENTS = "306d2a85"
ROOT = Path(__file__).parents[1]
RUNS = 3
COMMON = """
import json, os, resource, sys, tempfile, time
from pathlib import Path

from benchmarks.release import delete, live, worker

TICKS = os.sysconf("SC_CLK_TCK")
"""
UPDATES = """
from tests.harness import servers

WARM, COUNTED = 5, 40

def of_server(folder):
    pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    stats = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in (pid, *children)]
    ended = sum(map(int, stats[0][13:15]))
    return (sum(int(fields[11]) + int(fields[12]) for fields in stats) + ended) / TICKS

with tempfile.TemporaryDirectory() as home, servers.postgres(fsync="on") as server, server.database() as url:
    process, model = live(Path(home), url, people=100, features=2184, classes=10)
    busy, spent = worker(process), {"update": 0.0, "batch after a heartbeat": 0.0, "server": 0.0}
    batch = getattr(busy, "erase", lambda: None)
    for index in range(WARM + COUNTED):
        delete(process, f"p{index}")
        server_before = of_server(server.folder)
        moments = [time.process_time(), busy.work(model) or time.process_time(), batch() or time.process_time()]
        if index >= WARM:
            for name, seconds in zip(spent, (moments[1] - moments[0], moments[2] - moments[1])):
                spent[name] += seconds / COUNTED
            spent["server"] += (of_server(server.folder) - server_before) / COUNTED
    process.storage.close()
print(json.dumps(spent))
"""
DOCTOR = """
import subprocess

with tempfile.TemporaryDirectory() as home:
    process, model = live(Path(home), people=40, features=50, classes=4)
    process.storage.close()
    environment = os.environ | {"EXPUNGE_HOME": f"{home}/home", "EXPUNGE_RECIPES": home}
    command = [sys.executable, "-m", sys.argv[1], "doctor"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "No worker" not in said.stdout:
        raise RuntimeError(f"doctor said: {said.stdout}{said.stderr}")
print(json.dumps({"seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}))
"""
MAIN = {"now": "expunge_client.cli.main", "before": "service.cli.main"}


def rows() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        trees = {"now": ROOT, "before": unpacked(Path(folder), BEFORE)}
        updates = turns(trees, UPDATES)
        yield row("update, d = 21,840, PostgreSQL: worker and server / before", updates, 0.4)
        yield row("doctor / before", turns(trees, DOCTOR), 0.4)
    with tempfile.TemporaryDirectory() as folder:
        trees = {"now": ROOT, "before": unpacked(Path(folder), BEFORE_COMMITMENTS)}
        yield row("a warm update, d = 21,840, PostgreSQL / before commitments", turns(trees, UPDATES), 1.0)


def unpacked(folder: Path, commit: str) -> Path:
    """Write the tree of a commit there. Raises CalledProcessError where the clone lacks it."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # None before Python 3.11.4
        files.extractall(folder)
    return folder


def turns(trees: dict[str, Path], script: str) -> dict[str, list[dict[str, float]]]:
    """Run the script in each tree in turn, several times; return what it printed."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(RUNS):
        for name, tree in trees.items():
            command = [sys.executable, "-c", COMMON + script, MAIN[name]]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that wait for each other spend seconds, too
            done = subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def row(name: str, sides: dict[str, list[dict[str, float]]], target: float) -> dict[str, Any]:
    now, before = (median(sum(each.values()) for each in sides[side]) for side in ("now", "before"))
    ratio = now / before
    return {"name": name, "value": ratio, "target": f"<= {target:g}", "unit": "ratio", "met": ratio <= target} | {
        "sides": sides
    }


if __name__ == "__main__":
    for each in rows():
        print(json.dumps(each), flush=True)
