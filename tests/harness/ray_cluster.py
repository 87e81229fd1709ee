"""A Ray cluster of this machine alone, which ends with its block."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from expunge_workers.runtime.part_program import end_program
from tests.harness.process import PATH_OF_TESTS
from tests.harness.servers import free_port

PACKAGE = Path(__file__).resolve().parents[2] / "engines/ray"


@contextmanager
def ray_cluster(*paths: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a process that is to reach it. ``paths``: where its machines find more packages."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("unverified here: ray is not installed (pip install ray)")
    port, folder = free_port(), tempfile.mkdtemp(prefix="ray", dir="/tmp")  # its sockets need a short path
    searched = [PATH_OF_TESTS["PYTHONPATH"], str(PACKAGE), *map(str, paths)]
    variables = {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(searched)}
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=4"]
    process = subprocess.Popen(
        [*start, f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false", "--disable-usage-stats"],
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield {**variables, "RAY_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        end_program(process)
        shutil.rmtree(folder, ignore_errors=True)
