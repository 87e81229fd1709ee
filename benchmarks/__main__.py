"""Every benchmark: one table at the end, and ``build/reports/benchmarks.md``. ``python -m benchmarks [name ...]``.

A benchmark is a file of this folder with ``rows()``: mappings with ``name, value, target, unit``, ``met`` (None where
the target is not a number to meet) and ``sides``, the figures of both sides. Each runs in a process of its own, so that
none warms or crowds another, and is ended after ``SECONDS``. A run replaces the rows of the benchmarks
that it ran. The figures lie beside the page in ``bench.json``; ``--publish`` copies them to
``benchmarks/results``. A row with ``commit`` stays: nothing measures it any more, and that commit is the last that did.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.targets import explained, unanswered, was_not_run

HERE = Path(__file__).parent
RESULTS = HERE.parent / "build" / "reports" / "bench.json"
PUBLISHED = HERE / "results" / "bench.json"
ONLY_WHEN_NAMED = {"not_built"}
"""minutes to an hour, and no target"""
SECONDS = 4 * 3600
NO_SPREAD = 1e-9
"""a count that is the same in every run has no interval"""
RUN = """
import importlib, json, os, sys
for row in importlib.import_module(sys.argv[1]).rows():
    print(json.dumps(row | {"load": os.getloadavg()[0]}), flush=True)
"""
CONSOLE = Console(width=160)


def main(arguments: list[str]) -> int:
    names = [each for each in arguments if each != "--publish"]
    files = (file for file in HERE.glob("[a-z]*.py") if "def rows(" in file.read_text())
    chosen = names or sorted({file.stem for file in files} - ONLY_WHEN_NAMED)
    kept = json.loads((RESULTS if RESULTS.exists() else PUBLISHED).read_text())
    rows = [row for row in kept if "commit" in row or row["benchmark"] not in chosen]
    failed: list[str] = []
    CONSOLE.print(estimate(chosen))
    for place, name in enumerate(chosen, 1):
        CONSOLE.print(f"{place} of {len(chosen)}: {name} ...")
        rows += measure(name, failed)
        write(rows)
    CONSOLE.print(table(rows))
    CONSOLE.print(f"{len(rows)} rows in {RESULTS.with_name('benchmarks.md')}")
    for target in unanswered(rows):
        CONSOLE.print(f"not measured: {target.says} (python -m benchmarks {target.benchmark})")
    if failed:
        CONSOLE.print(f"failed: {', '.join(failed)}")
    if "--publish" in arguments:
        PUBLISHED.write_text(RESULTS.read_text())
    return 1 if failed else 0


def estimate(chosen: list[str]) -> str:
    """How long the last published runs of these took."""
    spent = {row["benchmark"]: row["seconds"] for row in json.loads(PUBLISHED.read_text()) if "seconds" in row}
    known = [spent[name] for name in chosen if name in spent]
    untimed = len(chosen) - len(known)
    return f"about {sum(known) / 60:.0f} minutes" + (f", and {untimed} that were never timed" if untimed else "")


def measure(name: str, failed: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", RUN, f"benchmarks.{name}"]
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False, timeout=SECONDS)
        output, ended = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired as late:
        output, ended = (late.stdout or b"").decode(), False
    if not ended:
        failed.append(name)
    lines = (line for line in output.splitlines() if line.startswith("{") and line.endswith("}"))
    run = {"benchmark": name, "at": datetime.now(UTC).isoformat(timespec="minutes")}
    seconds = round(time.monotonic() - start)
    CONSOLE.print(f"   {seconds} s")
    return [explained({**run, "seconds": seconds, **json.loads(line)}) for line in lines]


def write(rows: list[dict[str, Any]]) -> None:
    """Write the figures and a table of them."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    RESULTS.with_name("benchmarks.md").write_text(page(rows))


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks` from `bench.json`, which holds both raw figures of every row. "
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}. `load` is the "
        "machine's load average when the row was measured: above the number of cores other work ran beside it, and "
        "only the ratios, whose two sides ran interleaved, can be trusted.",
        "",
        "The table is no single run. Each row was put here at its time `at`; some came from runners of one "
        "question that called the functions of the file in `by`, not from this command. `python -m benchmarks NAME`, "
        "with the name in `by`, measures a file's rows again, and `make bench` all of them; a row `at` a commit is of "
        "a benchmark that was deleted after it. ± is half of the 95 % interval by Student's t, over the seeds in the "
        "row's `sides`.",
        "",
        "| measured | value | target | unit | met | load | at | by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        verdict = {True: "yes", False: "**no**", None: ""}[row.get("met")]
        shown = (row["name"], value_of(row), number(row["target"]), row["unit"], verdict)
        by = row["benchmark"] + (f" at {row['commit']}" if "commit" in row else "")
        lines.append("| " + " | ".join((*shown, number(row.get("load")), row["at"], by)) + " |")
    missed = [row for row in rows if row.get("met") is False]
    lines += ["", "## What is missed, and what it would need", ""]
    lines += [f"- {row['name']}: {row['sides']['reason']}" for row in missed]
    lines += [
        "",
        "## Without a row yet",
        "",
        "What each of these asks, the command that measures it, and what other runs gave.",
        "",
    ]
    lines += [
        f"- {target.says}: `python -m benchmarks {target.benchmark}`. {target.seen}".rstrip()
        for target in unanswered(rows)
    ] or ["Nothing."]
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table("measured", "value", "target", "unit", "met")
    for row in rows:
        verdict = {True: "yes", False: "NO", None: ""}[row.get("met")]
        shown.add_row(row["name"], value_of(row), number(row["target"]), row["unit"], verdict)
    return shown


def value_of(row: dict[str, Any]) -> str:
    """The row's figure as the tables show it, with half its 95 % interval where there is one."""
    if was_not_run(row):
        return "not run"
    half = row["sides"].get("+-") if isinstance(row.get("sides"), dict) else None
    return number(row["value"]) + (f" ± {half:.2g}" if half and half > NO_SPREAD else "")


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
