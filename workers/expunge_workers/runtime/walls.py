"""The walls of a world: what its processes may open, and how a process goes behind them.

A world sees a new root with the system's libraries, Python's packages, plain devices and a folder of its own. It has no
network but its own loopback, no process of others, no memory or queue that outlives it. What it starts inherits that,
C code is held to it too. Standard library alone.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import select
import signal
import socket
import stat
import struct
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NoReturn

from expunge_workers.runtime import kernel
from expunge_workers.runtime.own_packages import EXAMPLES, FOLDERS
from unlearning.accounting.world import Enclosure

VARIABLES = (
    "CUBLAS_",
    "CUDA_",
    "LANG",
    "LC_",
    "LD_LIBRARY_PATH",
    "MKL_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "PATH",
    "PYTHON",
    "PYTORCH_",
    "TZ",
)
"""how the names of the environment variables begin that a child process is given"""
FOLDER = "/world"
"""the world's own folder behind a new root"""
SHARED_MEMORY, TEMPORARY = "/dev/shm", "/tmp"  # noqa: S108  # nosec B108 (the world's own)
EMPTY = (TEMPORARY, "/run", "/var/tmp", SHARED_MEMORY)  # noqa: S108  # nosec B108 (the world's own)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys/devices/system", "/sys/fs/cgroup")
OF_CARDS = ("/sys/bus/pci", "/sys/class", "/sys/devices", "/sys/module")
CONFIGURATION = (
    "alternatives",
    "ca-certificates.conf",
    "fonts",
    "gai.conf",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/tls/certs",
    "protocols",
    f"python{sys.version_info.major}.{sys.version_info.minor}",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""what libraries ask of /etc; names of users and hosts are the world's own"""
WRITTEN = {
    "/etc/group": "world:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost world\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/passwd": f"world:x:1000:1000::{FOLDER}:/bin/sh\nnobody:x:65534:65534::{FOLDER}:/bin/sh\n",
}
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LINKS = {"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1"}
USER, NOBODY = 1000, 65534
"""the number of a world's user in its own namespace, and of the user outside whom root becomes"""
REFUSED = {
    "x86_64": (29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 240, 248, 249, 250, 425, 426, 427),
    "aarch64": (194, 195, 196, 197, 190, 191, 192, 193, 186, 187, 188, 189, 180, 217, 218, 219, 425, 426, 427),
}
"""shmget to shmdt, semget to semtimedop, msgget to msgctl, mq_open, add_key, request_key, keyctl, io_uring's three"""
SOCKET = {"x86_64": 41, "aarch64": 198}


class Wall(StrEnum):
    """A wall, by what lies behind it."""

    ROOT = "files"
    LANDLOCK = "files, by Landlock"
    NETWORK = "network"
    IPC = "shared memory"
    PID = "processes"
    SECCOMP = "system calls"


def strength_of(standing: frozenset[Wall]) -> Enclosure:
    """Return what these walls show; a new root without Landlock beside it shows as much (gVisor has none)."""
    if standing >= EVERY - {Wall.LANDLOCK}:
        return Enclosure.NEW_ROOT
    return Enclosure.LANDLOCK if standing >= WITHOUT_NAMESPACES else Enclosure.NONE


NAMESPACES = {Wall.NETWORK: kernel.CLONE_NEWNET, Wall.IPC: kernel.CLONE_NEWIPC, Wall.PID: kernel.CLONE_NEWPID}
EVERY = frozenset(Wall)
WITHOUT_NAMESPACES = frozenset({Wall.LANDLOCK, Wall.SECCOMP})


@dataclass(frozen=True)
class Walls:
    """What a world may open, as plain data.

    Args:
        standing: the walls.
        opened: real paths of files and folders that can be read and run.
        links: symbolic links that lead to them, and where each leads.
        devices: files that can be read, written and controlled.
        closed: folders in what is opened that stay empty, but for ``declared``.
        declared: real paths of files and folders in a closed one that can be read.
        folder: the only one that can be written to, with ``EMPTY``; behind a new root it is new.
    """

    standing: frozenset[Wall]
    opened: tuple[str, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = DEVICES
    closed: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    folder: str = FOLDER

    @property
    def strength(self) -> Enclosure:
        return strength_of(self.standing)


@dataclass(frozen=True)
class Probe:
    """Which walls this machine allows, and in words why the others are missing."""

    standing: frozenset[Wall]
    lacking: tuple[str, ...] = ()

    @property
    def strength(self) -> Enclosure:
        return strength_of(self.standing)


def draw(standing: frozenset[Wall], *, more: Iterable[str | Path] = (), closed: Iterable[str | Path] = ()) -> Walls:
    """List what a world may open on this machine.

    ``more``: files and folders besides. ``closed``: folders with data, such as the recipe's and the service's own.

    Raises ValueError: without a new root, a closed folder would be readable.
    """
    cards = tuple(str(path) for path in sorted(Path("/dev").glob("nvidia*")))
    (libraries, links), (others, more_links) = _libraries(with_cards=bool(cards)), _resolve(more)
    opened = libraries | others
    covered = _covered(opened, closed)
    declared = [path for path in _outermost(others) if any(_within(path, folder) for folder in covered)]
    walls = Walls(
        standing,
        opened=tuple(_outermost(opened)),
        links=links | more_links,
        devices=DEVICES + cards,
        closed=covered,
        declared=tuple(declared),
    )
    if walls.closed and Wall.ROOT not in standing:
        raise ValueError(f"{walls.closed[0]} lies in a folder that Python reads, and no new root can hide it. Move it.")
    return walls


def environment(folder: str, threads: int) -> dict[str, str]:
    """Return the variables of a world: an allow-list, and its own home, folders, threads, locale and time zone."""
    temporary = TEMPORARY if folder == FOLDER else f"{folder}/own"
    counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    own = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HOME": f"{folder}/home",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LOGNAME": "world",
        "MPLCONFIGDIR": f"{folder}/home/matplotlib",
        "NUMBA_CACHE_DIR": f"{folder}/home/numba",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "TMPDIR": temporary,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/home/inductor",
        "TRITON_CACHE_DIR": f"{folder}/home/triton",
        "TZ": "UTC",
        "USER": "world",
        "XDG_CACHE_HOME": f"{folder}/home/.cache",
        "XDG_CONFIG_HOME": f"{folder}/home/.config",
        "XDG_DATA_HOME": f"{folder}/home/.local/share",
    }
    return listed(os.environ) | own | dict.fromkeys(counts, str(threads))


def probe() -> Probe:
    """Try the walls in a forked process; this one must have a single thread."""
    landlock = kernel.landlock_version() > 0
    supported = platform.machine() in kernel.ARCHITECTURES and sys.platform == "linux"
    if not supported:
        return Probe(frozenset(), (f"no walls are known for {sys.platform} on {platform.machine()}",))
    refusals = [] if landlock else ["the kernel has no Landlock, or its option lsm= leaves it out"]
    for walls in (EVERY, WITHOUT_NAMESPACES) if landlock else (EVERY - {Wall.LANDLOCK},):
        refusal = _try(draw(walls))
        if refusal is None:
            return Probe(walls, tuple(refusals))
        refusals.append(f"{', '.join(sorted(walls))}: {refusal}")
    return Probe(frozenset(), tuple(refusals))


def _try(walls: Walls) -> str | None:
    """Enter the walls twice in a forked process, as a part of a world does; return why that failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enter(replace(walls, folder=FOLDER if Wall.ROOT in walls.standing else "/"), last=False, keep=(writing,))
            if Wall.ROOT in walls.standing:
                enter(walls, keep=(writing,))
            os.write(writing, b"entered")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        outcome = answer.read()
    os.waitpid(child, 0)
    return None if outcome == "entered" else outcome or "the process ended"


def enter(walls: Walls, *, threads: int = 1, last: bool = True, keep: Iterable[int] = ()) -> None:
    """Go behind the walls. It cannot be undone, and what this process starts is behind them too.

    The process has a single thread. Where a namespace is among the walls, this returns in a process forked from it, and
    the first one ends as that one does. Descriptors but ``keep`` lead to /dev/null from here on.

    Args:
        last: no walls are entered in these again. Before others are, Landlock must wait: it forbids to mount.

    Raises OSError: the kernel refuses. The process must end then: it is behind some of the walls.
    """
    leave_descriptors(keep)
    variables = environment(walls.folder, threads)
    namespaces = bool(walls.standing & {Wall.ROOT, *NAMESPACES})
    alive = _enter_namespaces(walls) if namespaces else None
    if os.geteuid() == 0:  # root owns the packages, and files in /proc that change the machine
        kernel.become(NOBODY)
    elif namespaces and last:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")  # no capability comes back in one of its own
    kernel.keep_capabilities(0)
    kernel.die_with_parent()  # after the last change of user: the kernel forgets it then
    if alive is not None:
        _end_if_alone(alive)
    _settle(walls.folder, variables)
    if Wall.SECCOMP in walls.standing:
        machine = platform.machine()
        kernel.refuse_calls(REFUSED[machine] if namespaces else (*REFUSED[machine], SOCKET[machine]))
    if Wall.LANDLOCK in walls.standing and (last or not namespaces):
        _restrict(walls, tcp=not namespaces)


def _enter_namespaces(walls: Walls) -> int:
    """Go on in a process with namespaces of its own; return a pipe that ends with the process that waits for it."""
    own, parent = walls.standing & {*NAMESPACES}, os.getppid()
    _unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | sum(NAMESPACES[wall] for wall in own))
    alive = _fork_inside(parent)
    socket.sethostname("world")
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    if Wall.ROOT in walls.standing:
        _make_root(walls)
    elif Wall.PID in walls.standing:
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    if Wall.NETWORK in walls.standing:
        _raise_loopback()
    return alive


def _settle(folder: str, variables: Mapping[str, str]) -> None:
    """Move into the folder, with these variables and the folders that they name."""
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    os.chdir(folder)
    if os.access(folder, os.W_OK):  # a probe's is not
        for name in ("HOME", "MPLCONFIGDIR", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            Path(variables[name]).mkdir(parents=True, exist_ok=True)


def leave_descriptors(keep: Iterable[int]) -> None:
    """Point every descriptor but these to /dev/null. A closed number would be used again, by code that forgot it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in {0, 1, 2, *map(int, os.listdir("/proc/self/fd"))} - {null, *keep}:  # noqa: PTH208 (numbers)
        if descriptor < 3 or os.path.lexists(f"/proc/self/fd/{descriptor}"):  # not that of the list itself
            os.dup2(null, descriptor, inheritable=descriptor < 3)
    os.close(null)


def _unshare(flags: int) -> None:
    if os.geteuid() == 0:
        try:
            kernel.unshare(flags)
        except PermissionError:  # root in a container, without the right to mount
            kernel.become(NOBODY)
        else:
            return
    kernel.unshare_as_user(flags, USER)


def _fork_inside(parent: int) -> int:
    """Fork the process that goes on in the new namespaces; return, in it, a pipe that ends with this one."""
    kernel.die_with_parent()  # it may have become another user
    if os.getppid() != parent:
        os._exit(1)
    alive, held = os.pipe()
    child = os.fork()
    if child:
        # An answer ends when nobody holds its descriptor any more. /proc is the child's by now, and cannot list them.
        os.closerange(0, held)
        os.closerange(held + 1, 1 << 20)
        _end_as(child)
    os.close(held)
    return alive


def _end_as(child: int) -> NoReturn:
    """Wait for the child, which SIGTERM kills, and end as it did: all processes of its namespace have ended then."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGKILL:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(abs(status))


def _end_if_alone(alive: int) -> None:
    """End where the parent died before the kernel was asked to tell: behind a PID namespace its number is hidden."""
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)
    os.close(alive)


def _make_root(walls: Walls) -> None:
    """Put a new root in the place of the old one, which is then out of reach."""
    new = TEMPORARY  # a folder that every machine has; what lies in it is bound by descriptors
    devices = (path for path in walls.devices if Path(path).exists())
    sources = {path: os.open(path, os.O_PATH) for path in (*walls.opened, *walls.declared, *devices)}
    _mount_empty(new, "0755")
    for path in (*EMPTY, walls.folder):
        Path(new + path).mkdir(parents=True, exist_ok=True)
        _mount_empty(new + path, "1777")
    for path in sorted(sources.keys() - {*walls.declared}):
        _bind(sources.pop(path), new + path, read_only=path not in walls.devices)
    emptied = _empty(walls.closed, new)
    for path, source in sorted(sources.items()):
        _bind(source, new + path, read_only=True)
    emptied += _empty([path for path in walls.closed if path not in emptied], new)  # in a folder that is declared
    for path in emptied:
        kernel.make_read_only(new + path, below=False)
    for path, destination in (*walls.links.items(), *LINKS.items()):
        if not os.path.lexists(new + path):
            Path(new + path).parent.mkdir(parents=True, exist_ok=True)
            Path(new + path).symlink_to(destination)
    for path, text in WRITTEN.items():
        Path(new + path).parent.mkdir(parents=True, exist_ok=True)
        Path(new + path).write_text(text)
    _show_processes(new + "/proc", own=Wall.PID in walls.standing)
    Path(new + "/.old").mkdir()
    kernel.pivot_root(new, new + "/.old")
    os.chdir("/")
    kernel.detach("/.old")
    Path("/.old").rmdir()
    kernel.make_read_only("/", below=False)


def _bind(source: int, target: str, *, read_only: bool) -> None:
    """Mount the file or folder of a descriptor, which is closed."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    kernel.mount(f"/proc/self/fd/{source}", target, None, kernel.MS_BIND | kernel.MS_REC)
    os.close(source)
    if read_only:
        kernel.make_read_only(target, below=True)


def _empty(folders: Iterable[str], new: str) -> list[str]:
    """Cover those of the folders that are there beneath ``new``, parents first; return them."""
    emptied = []
    for path in folders:
        if Path(new + path).is_dir():  # not where its parent was covered before
            _mount_empty(new + path, "0755")
            emptied.append(path)
    return emptied


def _mount_empty(target: str, mode: str) -> None:
    kernel.mount("none", target, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode={mode}")


def _show_processes(target: str, *, own: bool) -> None:
    """Mount a /proc of this PID namespace, or the one that there is."""
    Path(target).mkdir()
    if not own:
        return kernel.mount("/proc", target, None, kernel.MS_BIND | kernel.MS_REC)
    try:
        kernel.mount("proc", target, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    except PermissionError as error:  # a container that hides parts of its own /proc gives no whole one away
        advice = "If a container hides parts of /proc, run it with procMount: Unmasked, or systempaths=unconfined."
        raise PermissionError(error.errno, f"{error.strerror}. {advice}", "/proc") from None


def _raise_loopback() -> None:
    """Bring up the loopback of this network namespace, which is new and has nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        up_and_running = 0x1 | 0x40
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", up_and_running))


def _restrict(walls: Walls, *, tcp: bool) -> None:
    """Put Landlock beside the new root, with the same list; or in its place."""
    everything = kernel.READING | kernel.CHANGING | kernel.BETWEEN_FOLDERS | kernel.TRUNCATING | kernel.DEVICES
    reading = [*walls.opened, "/proc"]
    writing = [walls.folder, *(path for path in walls.devices if Path(path).exists())]
    if Wall.ROOT in walls.standing:
        reading += ["/etc", "/dev"]
        writing += EMPTY
    rules = dict.fromkeys(reading, kernel.READING) | dict.fromkeys(writing, everything)
    kernel.restrict(rules, everything, network=3 if tcp else 0, scoped=3)


@cache
def _libraries(*, with_cards: bool) -> tuple[set[str], dict[str, str]]:
    """Return what every world of this machine may open: real paths, and the links that lead to them."""
    configuration = (f"/etc/{name}" for name in CONFIGURATION)
    return _resolve([*SYSTEM, *(OF_CARDS if with_cards else ()), *configuration, *_packages()])


def _packages() -> list[str]:
    """Return where Python, its packages, and the packages of projects that are installed as editable lie."""
    folders = [sys.base_prefix, sys.prefix, *sysconfig.get_paths().values()]
    folders += [path for path in sys.path if path.endswith("-packages")]
    folders += (path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path.startswith("/"))
    projects = [*FOLDERS]
    for name, module in [*sys.modules.items()]:
        if re.fullmatch(r"__editable___.*_finder", name):  # as setuptools names them
            # a clone's examples are recipes: a world opens what they declare
            projects += [Path(path) for package, path in module.MAPPING.items() if package != EXAMPLES]
    for folder in {path for path in sys.path if path.endswith("-packages")}:
        for listing in sorted(Path(folder).glob("*.pth")):
            roots = [Path(line) for line in listing.read_text().splitlines() if line.startswith("/")]
            projects += [child.parent for root in roots for child in sorted(root.glob("*/__init__.py"))]
    return [path for path in folders if path and Path(path).is_dir()] + [str(path) for path in projects]


def _resolve(paths: Iterable[str | Path]) -> tuple[set[str], dict[str, str]]:
    """Return the real paths of those that exist, and the links on the way to them. No list opens all of the root."""
    real, links = set[str](), dict[str, str]()
    for path in paths:
        if not Path(path).exists() or os.path.realpath(path) == "/":
            continue
        real.add(os.path.realpath(path))
        walked = Path("/")
        parts = [*Path(path).absolute().parts[1:]]
        while parts:
            walked = walked / parts.pop(0)
            if walked.is_symlink():
                links[str(walked)] = str(walked.readlink())
                destination = Path(os.path.normpath(walked.parent / walked.readlink()))
                parts = [*destination.parts[1:], *parts]
                walked = Path("/")
    return real, links


def _covered(opened: Iterable[str], closed: Iterable[str | Path]) -> tuple[str, ...]:
    """Return the closed folders that lie in an opened one: the others are out of reach anyway."""
    real = sorted({os.path.realpath(path) for path in closed})
    return tuple(path for path in real if any(_within(path, folder) for folder in opened))


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that lie in no other one of them."""
    outermost: list[str] = []
    for path in sorted(paths):
        if not any(_within(path, folder) for folder in outermost):
            outermost.append(path)
    return outermost


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def listed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a child process is given: an allow-list."""
    return {name: value for name, value in environment.items() if name.startswith(VARIABLES)}
