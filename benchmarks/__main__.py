"""Every benchmark: one table at the end, and ``build/bench.json``. ``python -m benchmarks [name ...]``.

A benchmark is a file of this folder with ``rows()``: mappings with ``name, value, target, unit``, ``met`` (None where
the target is not a number to meet) and ``sides`` or ``raw``, the figures of both sides. Each runs in a process of its
own, so that none warms or crowds another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RUN = """
import importlib, json, sys
for row in importlib.import_module(sys.argv[1]).rows():
    print(json.dumps(row), flush=True)
"""
CONSOLE = Console(width=160)


def main(names: list[str]) -> int:
    chosen = names or sorted(file.stem for file in HERE.glob("[a-z]*.py") if "def rows(" in file.read_text())
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in chosen:
        CONSOLE.print(f"running {name} ...")
        rows += measure(name, failed)
    target = HERE.parent / "build" / "bench.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(rows, indent=1) + "\n")
    CONSOLE.print(table(rows))
    CONSOLE.print(f"{len(rows)} rows in {target}")
    if failed:
        CONSOLE.print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def measure(name: str, failed: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, f"benchmarks.{name}"],
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        failed.append(name)
    lines = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return [{"benchmark": name, **json.loads(line)} for line in lines]


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table("measured", "value", "target", "unit", "met")
    for row in rows:
        verdict = {True: "yes", False: "NO", None: ""}[row.get("met")]
        shown.add_row(row["name"], number(row["value"]), number(row["target"]), row["unit"], verdict)
    return shown


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
