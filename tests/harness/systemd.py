"""A systemd of its own, as the first process of new namespaces, over an overlay of this machine's root.

It changes no file of the machine, and starts nothing but what a test asks for. Its network is its own too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path("/lib/systemd/systemd")
SPACES = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup")
MISSING = "unverified here: as root on Linux, apt-get install systemd dbus"
START_SECONDS = 60.0
MASKED = (
    "systemd-sysctl.service",  # it would set the machine's own
    "systemd-modules-load.service",
    "systemd-udevd.service",
    "systemd-remount-fs.service",
    "dev-hugepages.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "sys-fs-fuse-connections.mount",
)
BOOT = """set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys && mount -o remount,ro,bind proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/shm dev/pts && ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
: > etc/fstab
rm -rf etc/systemd/system && mkdir etc/systemd/system
for name in $2; do ln -s /dev/null etc/systemd/system/$name; done
cp -a "$3/." .
mkdir -p mnt/old && pivot_root . mnt/old && umount -l /mnt/old
mount --make-rshared /
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin {program} --system --unit=basic.target --show-status=no
"""


def is_here() -> bool:
    programs = ("setpriv", "unshare", "nsenter", "systemctl", "systemd-run", "pivot_root", "dbus-daemon")
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return os.geteuid() == 0 and PROGRAM.exists() and all(shutil.which(each, path=path) for each in programs)


@dataclass
class Systemd:
    """The running one; ``pid`` is its number outside."""

    pid: int

    def run(self, *command: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root, and return what it printed."""
        words = [
            "nsenter",
            f"--target={self.pid}",
            *SPACES,
            "--",
            "env",
            "-i",
            "PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        words += [f"{name}={value}" for name, value in variables.items()]
        done = subprocess.run([*words, *command], check=False, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done

    def shows(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--property", name, "--value", unit).stdout.strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit).stdout


@contextmanager
def booted(folder: Path, files: Path) -> Iterator[Systemd]:
    """Boot it, with all that lies under ``files`` copied over its root, and end it with all that it has started.

    It ends with this process, too, however that is killed.

    ``folder``: an empty one, for its files while it runs.
    """
    groups, root = folder / "groups", folder / "root"
    groups.mkdir()
    root.mkdir()
    boot = BOOT.replace("{program}", str(PROGRAM))
    subprocess.run(["mount", "-t", "cgroup2", "none", groups], check=True)
    group = groups / f"expunge-test-{os.getpid()}"
    try:
        group.mkdir()
        enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
        apart = ["setpriv", "--pdeathsig", "KILL", "unshare", *SPACES, "--fork", "--kill-child"]
        command = ["sh", "-c", enter, "sh", *apart, "sh", "-c", boot, "sh", str(root), " ".join(MASKED), str(files)]
        with (
            (folder / "console").open("w") as console,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console) as outside,
        ):
            try:
                yield Systemd(_started(outside, folder / "console"))
            finally:
                outside.kill()
                outside.wait()
    finally:
        _emptied(group)
        group.rmdir()
        subprocess.run(["umount", groups], check=True)


def _started(outside: subprocess.Popen[bytes], console: Path) -> int:
    """Wait until it answers, and return its process's number."""
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and outside.poll() is None:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
            state = Systemd(int(children[0])).run("systemctl", "is-system-running", check=False).stdout.strip()
            if state in ("running", "degraded"):
                return int(children[0])
        time.sleep(0.2)
    raise AssertionError(f"systemd did not boot: {console.read_text()}")


def _emptied(group: Path) -> None:
    """Wait until no process is in the group or below it, and remove the groups below."""
    ends = time.monotonic() + START_SECONDS
    while "populated 1" in (group / "cgroup.events").read_text():
        assert time.monotonic() < ends, "processes of the test's systemd live on"
        time.sleep(0.1)
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        folder.rmdir()
