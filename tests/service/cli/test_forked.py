"""A fork shares with its parent what was imported before, also after it has collected garbage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.source import SOURCE_PATH

LARGE = "OBJECTS = [[] for _ in range(400_000)]\n"
COLLECTING = """
import gc
from pathlib import Path

def main(arguments):
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("Private_Dirty:")))
"""
FORKING = """
import importlib, os, sys
from expunge_service.cli.forked import Fork, import_for_forks

{before}
Fork("collecting", "collecting", [], os.environ, 1).wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
def test_a_collection_in_a_fork_copies_nothing_that_was_imported_for_it(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    (tmp_path / "collecting.py").write_text(COLLECTING)

    def private_kib(before: str) -> int:
        variables = os.environ | {"PYTHONPATH": os.pathsep.join([SOURCE_PATH, str(tmp_path)])}
        command = [sys.executable, "-P", "-c", FORKING.format(before=before)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=60)
        return int(done.stdout)

    copied = private_kib("importlib.import_module('large')")
    shared = private_kib("import_for_forks(['large'])")
    assert copied - shared > 20_000, (copied, shared)
