"""Every drill, one table at the end, and ``build/reports/drills.json``. ``python -m tests.faults [name ...]``.

A drill is a file of this folder with ``run(seed, scale) -> Result``: ``scale`` multiplies how much it does; at 1 it
does what docs/reliability.md promises. Each runs in a separate process, so that none cripples another.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.faults import soak
from tests.faults.report import last_seconds, parts, rich_table, write_into
from tests.faults.result import Result
from tests.harness.source import SOURCE_PATH

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = ROOT / "benchmarks" / "results" / "drills.md"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
RUN = """
import importlib, json, sys
from dataclasses import asdict
from pathlib import Path
name, seed, scale, target = sys.argv[1:]
result = importlib.import_module(f"tests.faults.{name}").run(int(seed), float(scale))
Path(target).write_text(json.dumps(asdict(result)))
"""
CONSOLE = Console(width=160)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["soak"]:
        return soak.main(arguments[1:])
    chosen = options(arguments)
    names = chosen.names or every_drill()
    CONSOLE.print(f"seed {chosen.seed}, scale {chosen.scale:g}: {', '.join(names)}")
    results, failed = [], []
    for name in names:
        CONSOLE.print(f"drill {name} ... {estimate(name, chosen.scale)}")
        result = alone(name, chosen.seed, chosen.scale)
        if result is None:
            failed.append(name)
        else:
            results.append(result)
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": chosen.seed,
        "scale": chosen.scale,
        "commit": commit(),
        "python": PYTHON,
        "failed": failed,
        "results": [asdict(result) for result in results],
    }
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(record, indent=1) + "\n")
    if chosen.write is not None:
        write_into(chosen.write, record)
    for result in results:
        for note in result.notes:
            CONSOLE.print(f"{result.name}: {note}", highlight=False, markup=False)
    CONSOLE.print(rich_table(results))
    for name in failed:
        CONSOLE.print(f"FAILED without a result: {name}")
    return 0 if not failed and all(result.clean for result in results) else 1


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one or more of: {', '.join(every_drill())}")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="default: drawn, and printed")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each drill to do; 1 is the full run")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "reports" / "drills.json")
    parser.add_argument(
        "--write", type=Path, help="a page whose table takes this run's rows: benchmarks/results/drills.md"
    )
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(every_drill()))
    if unknown:
        parser.error(f"no drill is called {', '.join(unknown)}")
    if chosen.write is not None:
        try:
            parts(chosen.write)  # before the hours of the drills
        except (OSError, ValueError) as error:
            parser.error(str(error))
    return chosen


def every_drill() -> list[str]:
    return sorted(file.stem for file in HERE.glob("[a-z]*.py") if "\ndef run(" in file.read_text())


def estimate(name: str, scale: float) -> str:
    """Say how long the drill will take, by its last run on this version of Python; "" where it has not run."""
    seconds = last_seconds(parts(RECORD)[1], name, PYTHON)
    return "" if seconds is None else f"some {seconds * scale:,.0f} s, going by its last run"


def commit() -> str:
    """Return the commit that is drilled; a plus sign means that there are changes that are not committed."""
    asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def alone(name: str, seed: int, scale: float) -> Result | None:
    """Run the drill in a separate process and return its result; None if it raised or died.

    It and the worlds that it makes compute on one thread: a drill keeps every core busy by processes, and more threads
    wait for each other by spinning.
    """
    start = time.monotonic()
    environment = os.environ | {"PYTHONPATH": SOURCE_PATH, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="expunge-drill-") as folder:
        target = Path(folder) / "result.json"
        command = [sys.executable, "-c", RUN, name, str(seed), str(scale), str(target)]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if done.returncode != 0 or not target.exists():
            return None
        result = Result.from_json(json.loads(target.read_text()))
    return replace(result, seconds=round(time.monotonic() - start, 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
