"""Each known bug is put into a separate copy of the source; the suite must fail under each, and pass without.

``python -m tests.faults planted_bugs`` ends with a list: bug, caught by which test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.faults.bugs import Bug, DoesNotApply, every_bug
from tests.faults.result import Result
from tests.harness.source import path_of

ROOT = Path(__file__).parents[2]
LEFT_OUT = (".*", "__pycache__", "build", "dist", "*.egg-info")
"""what building, running and version control leave next to the source"""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
AT_ONCE = 2
TESTS_FAILED = 1
"""pytest's exit status; others mean that the tests could not be run"""
NOT_PLANTED = -1


@dataclass(frozen=True)
class Verdict:
    bug: Bug
    status: int
    caught_by: str


def run(seed: int, scale: float) -> Result:
    """Plant every bug and run its tests, two at once; below scale 1 a share of the bugs, spread evenly."""
    bugs = every_bug()
    step = max(1, round(1 / scale))
    chosen = bugs[seed % step :: step]
    with tempfile.TemporaryDirectory(prefix="expunge-planted-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # where this is root, a world without a new root reads the code as nobody
        clean = copy_tree(folder / "clean")
        before = suite(clean, dict.fromkeys(test for bug in chosen for test in bug.suite), jobs=AT_ONCE)
        if before.returncode != 0:
            raise RuntimeError(f"the suite fails without any bug:\n{before.stdout[-4000:]}")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            verdicts = [*pool.map(lambda bug: verdict(clean, folder / bug.name, bug), chosen)]
    missed = [each for each in verdicts if each.status != TESTS_FAILED]
    return Result(
        "planted bugs",
        planted=len(verdicts),
        caught=len(verdicts) - len(missed),
        notes=tuple(f"{each.bug.words}: {each.caught_by or 'NOT CAUGHT'}" for each in verdicts),
    )


def verdict(clean: Path, target: Path, bug: Bug) -> Verdict:
    """Plant the bug in a separate copy, and return how its tests ended there."""
    shutil.copytree(clean, target, symlinks=True)
    try:
        bug.plant(target)
        done = suite(target, bug.suite)
    except DoesNotApply as error:  # the others have taken half an hour
        print(f"  {bug.name}: NOT PLANTED. {error}", flush=True)
        return Verdict(bug, NOT_PLANTED, "")
    finally:
        shutil.rmtree(target)
    failed = FAILED.search(done.stdout)
    found = Verdict(bug, done.returncode, failed[1].rpartition("/")[2] if failed else "")
    print(f"  {bug.name}: {found.caught_by or f'NOT CAUGHT (pytest ended with {done.returncode})'}", flush=True)
    if done.returncode > TESTS_FAILED:
        print(done.stdout[-2000:], flush=True)
    return found


def copy_tree(target: Path) -> Path:
    """Copy the source, and link the servers that were downloaded already."""
    shutil.copytree(ROOT, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if (ROOT / ".servers").is_dir():
        (target / ".servers").symlink_to(ROOT / ".servers")
    return target


def suite(root: Path, tests: Iterable[str], jobs: int = 1) -> subprocess.CompletedProcess[str]:
    """Run these tests on the source under ``root``, up to the first failure, in so many processes."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--engines=all",
        *(("-n", str(jobs), "--dist", "loadgroup") if jobs > 1 else ()),
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": path_of(root), "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
