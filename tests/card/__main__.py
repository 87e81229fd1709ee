"""Everything that a card can show, in one command: ``python -m tests.card [--device NAME] [--quick] [STEP ...]``.

It needs no network and no server: Python, torch and the packages of requirements.lock. Each step is a process of its
own, so that a device that breaks in one is whole in the next. A table comes last, and ``build/reports/card.json`` holds
the same with the rows of ``benchmarks/gpu.py``. It ends with 1 where a step failed.

The steps run with the same code on a processor (``--device cpu``) and on the pretend device of the tests
(``--device pretend``); without ``--device`` the first card is taken, and the processor where there is none. ``--quick``
asks less of each step, and is for those two.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tests.harness.device import NAME as PRETEND
from tests.harness.device import folder, on_device

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build" / "reports" / "card.json"
STORY = "tests/stories/test_methods_with_rows.py"
EXPECTED_SECONDS = {"contract": 120, "story": 180, "broken": 40, "speed": 60, "torchrun": 20}
"""what each step is expected to take on a card; none has run it yet"""
CONSOLE = Console(width=120)


@dataclass(frozen=True)
class Step:
    """Something that is shown on the device, by a command; ``quick`` are the words of the shorter one."""

    name: str
    shows: str
    command: Sequence[str]
    quick: Sequence[str]

    def words(self, quick: bool) -> list[str]:
        return [sys.executable, "-m", *(self.quick if quick else self.command)]


@dataclass(frozen=True)
class Outcome:
    """How a step ended: ``found`` is what it counted or measured, or the last lines of a step that failed."""

    step: str
    shows: str
    passed: bool
    seconds: float
    found: str


PYTEST = ("pytest", "-q", "-p", "no:cacheprovider")
CONTRACT = (*PYTEST, "tests/contract/test_contract.py")
STEPS = (
    Step(
        "contract",
        "every method keeps its contract with tensors and generators of the device",
        command=CONTRACT,
        quick=(*CONTRACT, "-k", "later_release"),
    ),
    Step(
        "story",
        "people leave by HTTP, one by one and together; certificates and log hold",
        command=(*PYTEST, STORY, "-m", ""),
        quick=(*PYTEST, STORY, "-k", "newton and not calibrated"),
    ),
    Step(
        "broken",
        "a training that breaks its device is refused, and the next deletion is done",
        command=(*PYTEST, "tests/card/test_broken.py"),
        quick=(*PYTEST, "tests/card/test_broken.py"),
    ),
    Step(
        "speed",
        "Hessian products beside gradients and the card's own rate; the parts of an update",
        command=("benchmarks.gpu", "--json"),
        quick=("benchmarks.gpu", "--json", "--tiny"),
    ),
    Step(
        "torchrun",
        "a process that torchrun starts trains with DistributedDataParallel, twice with equal bits",
        command=("torch.distributed.run", "--nproc-per-node=1", "--standalone", "tests/card/ranks.py"),
        quick=("torch.distributed.run", "--nproc-per-node=1", "--standalone", "tests/card/ranks.py"),
    ),
)


def main(arguments: Sequence[str]) -> int:
    chosen = options(arguments)
    device = chosen.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == PRETEND and folder() is None:
        CONSOLE.print("unverified here: no C++ compiler builds the pretend device")
        return 1
    steps = [step for step in STEPS if not chosen.steps or step.name in chosen.steps]
    expected = sum(EXPECTED_SECONDS[step.name] for step in steps)
    CONSOLE.print(f"{described(device)}: {len(steps)} steps, about {expected / 60:.0f} minutes on a card")
    outcomes, rows = [], []
    for step in steps:
        CONSOLE.print(f"{step.name}: {step.shows} ...")
        outcome, measured = carry_out(step, device, chosen.quick)
        outcomes.append(outcome)
        rows += measured
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report(device, chosen.quick, outcomes, rows), indent=1) + "\n")
    CONSOLE.print(table(device, outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.card", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", help="cuda, cuda:N, cpu or pretend; by default the first card, else cpu")
    parser.add_argument("--quick", action="store_true", help="ask less of each step")
    parser.add_argument("steps", nargs="*", metavar="STEP", choices=[[], *(step.name for step in STEPS)])
    return parser.parse_args(arguments)


def carry_out(step: Step, device: str, quick: bool) -> tuple[Outcome, list[dict[str, Any]]]:
    """Run a step in a process of its own; return how it ended, and the rows that it measured."""
    start = time.monotonic()
    done = subprocess.run(
        step.words(quick), cwd=ROOT, env=environment(device), capture_output=True, text=True, check=False
    )
    passed = done.returncode == 0
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = counted(done.stdout, rows) if passed else (done.stdout + done.stderr)[-3000:]
    return Outcome(step.name, step.shows, passed, round(time.monotonic() - start, 1), found), rows


def environment(device: str) -> Mapping[str, str]:
    """Return the variables of a step: what it reads to find the device."""
    named = {"EXPUNGE_CONTRACT_DEVICE": device, "EXPUNGE_TESTS_DEVICE": device}
    return on_device(**named) if device == PRETEND else {**os.environ, **named}


def counted(printed: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in a few words what a step that passed has found."""
    tests = re.search(r"\d+ passed.*(?= in )", printed)
    if tests:
        return tests[0]
    measured = [f"{row['name'].partition(': ')[2]} {row['value']:.3g}" for row in rows if row["value"] is not None]
    return "; ".join(measured) or printed.strip().rpartition("\n")[2]


def described(device: str) -> str:
    """Return the device's name, and the card's where it is one."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


def report(device: str, quick: bool, outcomes: Sequence[Outcome], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of a run: when, on what, by which software, what came out."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": described(device),
        "quick": quick,
        "software": {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda},
        "steps": [asdict(outcome) for outcome in outcomes],
        "rows": [*rows],
    }


def table(device: str, outcomes: Sequence[Outcome]) -> Table:
    shown = Table("step", "", "seconds", "found", title=described(device))
    for outcome in outcomes:
        word = "passed" if outcome.passed else "FAILED"
        shown.add_row(
            outcome.step, word, f"{outcome.seconds:.0f}", outcome.found, style="" if outcome.passed else "red"
        )
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
