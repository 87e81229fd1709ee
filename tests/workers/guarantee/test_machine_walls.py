"""The doctor's row of a machine: which walls stand, why others do not, what certificates say, what would change it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from expunge_workers import doctor
from expunge_workers.guarantee import machine_walls
from expunge_workers.guarantee.machine_walls import Surroundings, explain, observe, try_walls
from expunge_workers.runtime.kernel import landlock_version
from expunge_workers.runtime.walls import EVERY, WITHOUT_NAMESPACES, Probe, Wall
from tests.workers.runtime.template import unreachable
from unlearning.accounting.world import Enclosure

NO_LANDLOCK = "the kernel has no Landlock, or its option lsm= leaves it out"
REFUSED = f"{', '.join(sorted(EVERY))}: PermissionError: [Errno 1] unshare: Operation not permitted"
MASKED = (
    f"{', '.join(sorted(EVERY))}: PermissionError: [Errno 1] mount: Operation not permitted. If a container hides "
    "parts of /proc, run it with procMount: Unmasked, or systempaths=unconfined.: '/proc'"
)
ALONE = Probe(WITHOUT_NAMESPACES, (REFUSED,))
DOCKER = Surroundings(container=True, filtered=True, mounted=("/srv/recipes", "/var/lib/expunge/store"))

# row of the table -> (what the machine allows, what surrounds it, what certificates say, words, words of the remedy)
ROWS: dict[str, tuple[Probe, Surroundings, Enclosure, list[str], list[str]]] = {
    "Linux with Landlock and user namespaces": (
        Probe(EVERY),
        Surroundings(),
        Enclosure.NEW_ROOT,
        ["Walls stand around files, network, processes, shared memory, system calls."],
        [],
    ),
    "gVisor, or a kernel without Landlock": (
        Probe(EVERY - {Wall.LANDLOCK}, (NO_LANDLOCK,)),
        Surroundings(container=True),
        Enclosure.NEW_ROOT,
        ["There is no Landlock, and the new root does without."],
        [],
    ),
    "Docker's default profile, data mounted": (
        ALONE,
        DOCKER,
        Enclosure.LANDLOCK,
        [
            "Landlock and a filter of system calls stand alone. The others fail: unshare: Operation not permitted.",
            "how large the files are that this container mounts in /srv/recipes, /var/lib/expunge/store.",
            "without ranks and without DataLoader workers",
        ],
        ["seccomp profile that allows unshare, mount", "gVisor (runsc)"],
    ),
    "a restricted pod without data": (
        ALONE,
        Surroundings(container=True, filtered=True),
        Enclosure.LANDLOCK,
        ["This container mounts no data, so that there is nothing of theirs to see; certificates make no difference."],
        ["seccomp profile that allows unshare, mount"],
    ),
    "a container with a masked /proc": (
        Probe(WITHOUT_NAMESPACES, (MASKED,)),
        DOCKER,
        Enclosure.LANDLOCK,
        ["The others fail: mount: Operation not permitted. If a container hides parts of /proc"],
        ["systempaths=unconfined", "procMount: Unmasked"],
    ),
    "user namespaces are off, by Debian's setting": (
        ALONE,
        Surroundings(sysctls=("kernel.unprivileged_userns_clone",)),
        Enclosure.LANDLOCK,
        [
            "User namespaces are off: kernel.unprivileged_userns_clone is 0.",
            "how large other files of this machine are",
        ],
        ["sysctl -w kernel.unprivileged_userns_clone=1."],
    ),
    "user namespaces are off, by two settings": (
        ALONE,
        Surroundings(sysctls=("user.max_user_namespaces", "kernel.apparmor_restrict_unprivileged_userns")),
        Enclosure.LANDLOCK,
        ["user.max_user_namespaces is 0 and kernel.apparmor_restrict_unprivileged_userns is 1."],
        ["sysctl -w user.max_user_namespaces=15000; sysctl -w kernel.apparmor_restrict_unprivileged_userns=0."],
    ),
    "a unit of systemd that restricts namespaces": (
        ALONE,
        Surroundings(filtered=True),
        Enclosure.LANDLOCK,
        ["unshare: Operation not permitted"],
        ["deploy/systemd/expunge-worlds.conf"],
    ),
    "refused, and nobody knows why": (
        ALONE,
        Surroundings(),
        Enclosure.LANDLOCK,
        ["unshare"],
        ["Allow user namespaces"],
    ),
    "neither Landlock nor namespaces": (
        Probe(frozenset(), (NO_LANDLOCK, REFUSED)),
        Surroundings(sysctls=("user.max_user_namespaces",)),
        Enclosure.NONE,
        ["No wall stands. User namespaces are off"],
        ["sysctl -w user.max_user_namespaces=15000; or boot with landlock in lsm="],
    ),
    "macOS": (
        Probe(frozenset(), ("no walls are known for darwin on arm64",)),
        Surroundings(),
        Enclosure.NONE,
        ["No wall stands. The others fail: no walls are known for darwin on arm64."],
        ["Run workers on Linux, x86-64 or ARM64; a container does."],
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_each_machine_is_told_what_stands_what_is_said_and_what_would_change_it(row: str) -> None:
    found, around, walls, words, steps = ROWS[row]
    assert Enclosure(found.strength) is walls
    finding = doctor.walls(found, around)
    assert finding.well, "no guarantee is refused: its word changes"
    for word in words:
        assert word in finding.what, finding.what
    for step in steps:
        assert step in finding.hint, finding.hint
    shown = walls is Enclosure.NEW_ROOT
    assert ("Certificates show that a training opened nothing else." in finding.what) == shown
    assert ("Certificates say that it is your word that a training opened nothing else" in finding.what) != shown
    assert bool(finding.hint) != shown
    assert "  " not in finding.what + finding.hint and ".." not in finding.what + finding.hint


def test_what_was_tried_as_root_says_so() -> None:
    for found in (Probe(EVERY), ALONE):
        assert "tried as root" in explain(found, Surroundings(root=True))[0]
        assert "tried as root" not in explain(found, Surroundings())[0]


REFUSING = """
import os, sys
from expunge_workers.guarantee.machine_walls import try_walls
from expunge_workers.runtime import kernel
kernel.refuse_calls([int(number) for number in sys.argv[1:]])
if os.geteuid() == 0:
    kernel.become(65534)
found = try_walls()
print(found.strength, *found.lacking, sep="|")
"""


@pytest.mark.skipif(platform.machine() != "x86_64" or landlock_version() == 0, reason="x86-64's calls, and Landlock")
@pytest.mark.parametrize(
    ("refused", "strength"),
    [([272], Enclosure.LANDLOCK), ([155], Enclosure.LANDLOCK), ([272, 444], Enclosure.NONE)],
)
def test_what_a_filter_refuses_is_found_by_trying(refused: list[int], strength: Enclosure) -> None:
    """unshare, pivot_root; and Landlock besides: as a container's profile refuses them."""
    if reason := unreachable():
        pytest.skip(reason)
    command = [sys.executable, "-c", REFUSING, *map(str, refused)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    found, *lacking = done.stdout.strip().split("|")
    assert found == strength and "Operation not permitted" in lacking[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="walls are Linux's")
def test_this_machine_has_a_row() -> None:
    finding = doctor.walls(try_walls(), observe([Path("/")]))
    assert finding.name == "walls" and "opened nothing else" in finding.what


def test_a_process_that_tries_and_fails_is_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_walls, "PYTHON", ("/bin/false",))
    found = try_walls()
    assert found.strength is Enclosure.NONE and "CalledProcessError" in found.lacking[0]


def test_what_refuses_namespaces_is_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {"user.max_user_namespaces": "0", "kernel.apparmor_restrict_unprivileged_userns": "0"}
    monkeypatch.setattr(machine_walls, "_sysctl", lambda name: values.get(name, ""))
    monkeypatch.setattr(machine_walls, "_CONTAINERS", (tmp_path / ".dockerenv",))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    outside = observe([tmp_path])
    assert outside.sysctls == ("user.max_user_namespaces",) and outside.root == (os.geteuid() == 0)
    assert not outside.container and outside.mounted == ()
    (tmp_path / ".dockerenv").touch()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"overlay / overlay rw 0 0\nvolume {tmp_path / 'data'} ext4 rw 0 0\n")
    monkeypatch.setattr("expunge_service.infra.files._MOUNTS", mounts)
    for name in ("data", "image"):
        (tmp_path / name).mkdir()
    inside = observe([tmp_path / "data", tmp_path / "image", tmp_path / "gone"])
    assert inside.container and inside.mounted == (str(tmp_path / "data"),)
