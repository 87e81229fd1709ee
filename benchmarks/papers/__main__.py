"""What the five papers promised, measured here: ``python -m benchmarks.papers [NAME ...] [--publish]``.

A paper is a module of this folder. It offers ``PAPER`` (a ``Paper``), ``FULL`` and ``SMALL`` (its sizes, each a type of
its own) and ``rows(size)``, which yields a ``Row`` for each cell as soon as it is measured; tests run ``SMALL``.
Each row goes to ``build/reports/papers.json`` as it comes, so that an interrupted run keeps what it measured; named
papers replace their own. ``papers.md`` beside it is made of the papers that it holds whole, and of those published
before. ``--publish`` copies them to ``benchmarks/results/papers.json``.
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
from threadpoolctl import threadpool_limits

from benchmarks.papers import images, page
from benchmarks.papers.row import Paper, Row

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "build" / "reports" / "papers.json"


def main(arguments: list[str]) -> int:
    chosen = [each for each in arguments if each != "--publish"] or present()
    if unknown := set(chosen) - set(present()):
        print(f"unknown: {', '.join(sorted(unknown))}. The papers are {', '.join(present())}.")
        return 2
    if arguments != ["--publish"]:
        try:
            images.folder()
        except FileNotFoundError as error:
            print(error)
            return 2
        for name in chosen:
            measure(name)
    found = page.read() | whole()
    page.write(found)
    if "--publish" in arguments:
        page.publish(found)
    return 0


def present() -> list[str]:
    """Name the papers whose module is there, in the order of the page."""
    return [name for name in page.NAMES if (HERE / f"{name}.py").exists()]


def measure(name: str) -> None:
    """Measure one paper on one thread; show and keep each row as it comes."""
    torch.set_num_threads(1)
    # The attacks' logistic regressions leave threads of numpy's library that spin, in the CPU time of what comes next.
    threadpool_limits(1)
    module = importlib.import_module(f"benchmarks.papers.{name}")
    paper: Paper = module.PAPER
    print(f"{name}: {paper.title}. About {paper.seconds / 60:.0f} minutes of CPU time on one thread.", flush=True)
    words = {key: value for key, value in vars(paper).items() if key not in ("name", "seconds")}
    found = {**words, "at": datetime.now(UTC).date().isoformat(), "rows": [], "whole": False}
    for row in told(module.rows(module.FULL)):
        found["rows"].append(row.as_json())
        keep(name, found)
    keep(name, found | {"whole": True})


def whole() -> dict[str, Any]:
    """Return the papers that were measured to their end."""
    found = kept()
    for name, result in found.items():
        if not result["whole"]:
            print(f"{name}: interrupted after {len(result['rows'])} rows, not shown. Run it again to its end.")
    return {name: result for name, result in found.items() if result.pop("whole")}


def told(rows: Iterator[Row]) -> Iterator[Row]:
    start = time.process_time()
    for each in rows:
        print(f"{time.process_time() - start:7.0f} s  {each.place}: {each.shown()} ({each.verdict})", flush=True)
        yield each


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def keep(name: str, result: dict[str, Any]) -> None:
    """Replace a paper's results. An interruption leaves the file as it was before or as it is after."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps(kept() | {name: result}, indent=1, ensure_ascii=False) + "\n")
    part.replace(RESULTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
