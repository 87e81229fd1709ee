"""What the systemd unit's hardening does to the walls of worlds: tried as the kernel sees it, without systemd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.source import ROOT, SOURCE_PATH
from tests.workers.runtime.template import NOBODY, unreachable

PROBE = "from expunge_workers.runtime.walls import probe; print(probe().strength)"
COVER = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && "


def strength_of(cover: str) -> str:
    """Return the strength of the walls that an ordinary user gets, in a mount namespace of its own."""
    if os.geteuid() != 0 or unreachable():
        pytest.skip("unverified here: only root can cover a part of /proc for another user")
    python = (
        f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs --bounding-set=-all {sys.executable}"
    )
    command = ["unshare", "-m", "sh", "-c", f"{cover}{python} -c '{PROBE}'"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": SOURCE_PATH}, cwd="/", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_proc_that_is_partly_covered_leaves_landlock_alone() -> None:
    if strength_of("") != "new root":
        pytest.skip("unverified here: an ordinary user gets no new root on this machine")
    assert strength_of(COVER) == "landlock alone"


def test_the_drop_in_uncovers_proc_and_allows_namespaces() -> None:
    unit = Path(ROOT, "deploy/systemd/expunge@.service").read_text()
    given = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    lines = Path(ROOT, "deploy/systemd/expunge-worlds.conf").read_text().splitlines()
    undone = dict(line.split("=", 1) for line in lines if "=" in line)
    covers = {"ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset"}
    assert all(undone.get(name) == "no" for name in covers & given.keys())
    assert {"user", "mnt", "net", "ipc", "pid", "uts"} <= {*undone["RestrictNamespaces"].split()}
