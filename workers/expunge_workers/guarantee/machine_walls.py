"""Which walls this machine gives a world, what certificates say because of them, and what would change it.

``python -m expunge_workers.guarantee.machine_walls`` tries the walls and prints what stands as JSON: that needs a
process with a single thread, which one with torch is not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from expunge_service.infra.files import filesystem_of
from expunge_service.infra.python import PYTHON
from expunge_workers.runtime.walls import Probe, Wall, probe
from unlearning.accounting.world import Enclosure

_SYSCTLS = {
    "user.max_user_namespaces": ("0", "15000"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}
"""settings of the kernel that refuse user namespaces: by the first value, and no more by the second"""
_CONTAINERS = (Path("/.dockerenv"), Path("/run/.containerenv"))
_ERROR = re.compile(r"^.*?\w+Error: (\[Errno \d+\] )?")
_SECONDS = 60
_CALLS = "unshare, mount, umount2, pivot_root, mount_setattr and sethostname"
_WORD = "Certificates say that it is your word that a training opened nothing else, and state no number for exact."
_SHOWN = "Certificates show that a training opened nothing else."
_ALONE = "A training has no sockets then: it is one process, without ranks and without DataLoader workers."


@dataclass(frozen=True)
class Surroundings:
    """What decides which walls a kernel allows, as far as a process of the service sees it.

    Args:
        container: this process runs in one.
        filtered: somebody filters the system calls of this process: a container, or systemd.
        sysctls: the settings of the kernel that refuse user namespaces, by name.
        mounted: folders of the service that are mounted into this container.
        root: this process is root's, to whom the kernel refuses less than to a worker's user.
    """

    container: bool = False
    filtered: bool = False
    sysctls: tuple[str, ...] = ()
    mounted: tuple[str, ...] = ()
    root: bool = False


def observe(folders: Iterable[Path]) -> Surroundings:
    """Look at this machine. ``folders``: where data lie."""
    container = "KUBERNETES_SERVICE_HOST" in os.environ or any(path.exists() for path in _CONTAINERS)
    existing = [folder.absolute() for folder in folders if folder.exists()]
    return Surroundings(
        container=container,
        filtered="\nSeccomp:\t2" in _text(Path("/proc/self/status")),
        sysctls=tuple(name for name, (refusing, _) in _SYSCTLS.items() if _sysctl(name) == refusing),
        mounted=tuple(str(path) for path in existing if container and filesystem_of(path)[0] not in ("", "/")),
        root=os.geteuid() == 0,
    )


def try_walls() -> Probe:
    """Try the walls in a process of its own."""
    command = [*PYTHON, "-m", "expunge_workers.guarantee.machine_walls"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603
        found = json.loads(tried.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Probe(frozenset(), (f"the process that tries the walls failed ({type(error).__name__})",))
    return Probe(frozenset(Wall(wall) for wall in found["standing"]), tuple(found["lacking"]))


def explain(found: Probe, around: Surroundings) -> tuple[str, str]:
    """Say which walls stand, what is lacking and why, and what certificates say; and what would change it."""
    root = " This was tried as root: a worker of another user may have less." if around.root else ""
    if found.strength is Enclosure.NEW_ROOT:
        landlock = "" if Wall.LANDLOCK in found.standing else " There is no Landlock, and the new root does without."
        walls = ", ".join(sorted(found.standing - {Wall.LANDLOCK}))
        return f"Walls stand around {walls}.{landlock} {_SHOWN}{root}", ""
    if found.strength is Enclosure.LANDLOCK:
        what = f"Landlock and a filter of system calls stand alone. {_why(found, around)} {_seen(around)} {_ALONE}"
    else:
        what = f"No wall stands. {_why(found, around)}"
    return f"{what} {_WORD}{root}", _remedy(found, around)


def _why(found: Probe, around: Surroundings) -> str:
    """Return why the other walls are lacking: the settings that refuse them, or else the words of the probe."""
    if around.sysctls:
        values = " and ".join(f"{name} is {_SYSCTLS[name][0]}" for name in around.sysctls)
        return f"User namespaces are off: {values}."
    reasons = dict.fromkeys(_ERROR.sub("", reason).rstrip(".") for reason in found.lacking)
    return f"The others fail: {'; '.join(reasons)}." if reasons else "Why is not known."


def _seen(around: Surroundings) -> str:
    """Return what a training sees through Landlock alone: of files that it cannot read, how large they are."""
    if around.mounted:
        folders = ", ".join(around.mounted)
        return f"A training sees other processes, and how large the files are that this container mounts in {folders}."
    if around.container:
        return (
            "A training sees other processes. This container mounts no data, so that there is nothing of theirs to "
            "see; certificates make no difference."
        )
    return "A training sees other processes, and how large other files of this machine are."


def _remedy(found: Probe, around: Surroundings) -> str:
    """Return what would let all walls stand."""
    if any("no walls are known" in reason for reason in found.lacking):
        return "Run workers on Linux, x86-64 or ARM64; a container does."
    steps = [f"sysctl -w {name}={_SYSCTLS[name][1]}" for name in around.sysctls]
    if around.container:
        steps.append(
            f"give the worker's container a seccomp profile that allows {_CALLS} (Docker: --security-opt "
            "seccomp=FILE, apparmor=unconfined and systempaths=unconfined; Kubernetes: procMount: Unmasked), or run it "
            "under gVisor (runsc)"
        )
    elif around.filtered:
        steps.append("give the units of worker and updater deploy/systemd/expunge-worlds.conf, which allows namespaces")
    elif not steps:
        steps.append("allow user namespaces to the workers' user")
    if not found.standing and any("Landlock" in reason for reason in found.lacking):
        steps.append("or boot with landlock in lsm=, which keeps files from a training")
    text = "; ".join(steps)
    return f"{text[0].upper()}{text[1:]}." if not around.sysctls else f"{text}."


def _sysctl(name: str) -> str:
    return _text(Path("/proc/sys") / name.replace(".", "/")).strip()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def main() -> None:
    found = probe()
    sys.stdout.write(json.dumps({"standing": sorted(found.standing), "lacking": list(found.lacking)}))


if __name__ == "__main__":
    main()
