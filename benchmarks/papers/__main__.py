"""What the five papers promised, measured here: ``python -m benchmarks.papers [NAME ...] [--publish]``.

A paper is a module of this folder. It offers ``PAPER`` (a ``Paper``), ``FULL`` and ``SMALL`` (its sizes, each a type of
its own) and ``rows(size)``, which yields a ``Row`` for each cell as soon as it is measured; tests run ``SMALL``.
Results go to ``build/papers.json``; named papers replace their own. ``--publish`` copies what the file holds to
``docs/papers.json``, keeps there the papers that the file lacks, and makes ``docs/papers.md``.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.papers import page
from benchmarks.papers.row import Paper, Row

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "build" / "papers.json"


def main(arguments: list[str]) -> int:
    chosen = [each for each in arguments if each != "--publish"] or present()
    if unknown := set(chosen) - set(present()):
        print(f"unknown: {', '.join(sorted(unknown))}. The papers are {', '.join(present())}.")
        return 2
    if arguments != ["--publish"]:
        for name in chosen:
            keep(name, measured(name))
    if "--publish" in arguments:
        page.write(page.read() | kept())
    return 0


def present() -> list[str]:
    """Name the papers whose module is there, in the order of the page."""
    return [name for name in page.NAMES if (HERE / f"{name}.py").exists()]


def measured(name: str) -> dict[str, Any]:
    """Measure one paper on one thread, and show each row as it comes."""
    torch.set_num_threads(1)
    module = importlib.import_module(f"benchmarks.papers.{name}")
    paper: Paper = module.PAPER
    print(f"{name}: {paper.title}. About {paper.seconds / 60:.0f} minutes of CPU time on one thread.", flush=True)
    rows = [each.as_json() for each in told(module.rows(module.FULL))]
    at = datetime.now(UTC).date().isoformat()
    words = {key: value for key, value in vars(paper).items() if key not in ("name", "seconds")}
    return {**words, "at": at, "rows": rows}


def told(rows: Iterator[Row]) -> Iterator[Row]:
    start = time.process_time()
    for each in rows:
        print(f"{time.process_time() - start:7.0f} s  {each.place}: {each.shown()} ({each.verdict})", flush=True)
        yield each


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def keep(name: str, result: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept() | {name: result}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
