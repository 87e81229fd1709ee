"""Confine this process while a recipe's ``train`` runs in it: no network, no file of the service, no other program.

Python's audit events (PEP 578) are refused and noted as they happen; what C code does by itself raises none. Where the
kernel allows it, the process also moves into a network namespace without a network. Standard library alone: this is
loaded before torch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TOOLS = frozenset({"c++", "cc", "clang", "clang++", "g++", "gcc", "ld", "ldconfig", "ninja", "ptxas", "uname"})
"""programs that libraries start to compile a model, or to look at the machine"""
KEPT = (
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
"""how the names of the environment variables begin that ``train`` still sees"""

SOCKETS = {"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"}
NAMES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}
PROGRAMS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"}
CHANGES = {
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "sqlite3.connect",
}
LISTS = {"os.listdir", "os.scandir"}
SYSTEM = ("/dev", "/etc", "/lib", "/proc", "/sys", "/usr")
"""folders of the system, whose files are nobody's data"""
DEVICES, SHARED_MEMORY = ("/dev",), "/dev/shm"  # noqa: S108 (it is what is refused)
"""what lies in shared memory is a file like any other: it outlives the training that wrote it"""


@dataclass(frozen=True)
class Attempt:
    """The first thing that ``train`` did and may not do: in words, where in the recipe, and with which value."""

    what: str
    place: str
    value: str


@dataclass
class Confinement:
    """The rules for a process, and what it attempted.

    Args:
        folder: the only one that may be written to.
        closed: files and folders of the service, which may not even be read.
        recipes: the recipe's folder; it may be read even where it lies in a closed one.
    """

    folder: Path
    closed: Sequence[Path]
    recipes: Path
    attempts: list[Attempt] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    """files with data that were read"""

    def begin(self) -> None:
        """Hide the environment, move to the empty folder and install the audit hook. Nothing of it can be undone."""
        sys.dont_write_bytecode = True
        kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        os.environ.clear()
        os.environ.update(kept, HOME=str(self.folder), TMPDIR=str(self.folder), TORCHINDUCTOR_COMPILE_THREADS="1")
        os.chdir(self.folder)
        tempfile.tempdir = str(self.folder)
        self._folder = os.path.realpath(self.folder)
        self._closed = tuple(os.path.realpath(each) for each in self.closed)
        self._open = tuple(os.path.realpath(each) for each in (self.recipes, sys.prefix, sys.base_prefix, self.folder))
        packages = (each for each in sys.path if each.endswith("-packages"))
        self._libraries = (*self._open[1:], *(os.path.realpath(each) for each in packages))
        sys.addaudithook(self._judge)

    def _judge(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._judge_open(arguments[0], arguments[2])
        elif event in SOCKETS or event in NAMES:
            self._judge_address(event, arguments)
        elif event in PROGRAMS:
            self._judge_program(event, arguments)
        elif event in CHANGES:
            self._judge_change(event, arguments[0])
        elif event in LISTS and self._is_closed(_path(arguments[0] or ".")):
            self._refuse("looked into a folder of the service", arguments[0])

    def _judge_open(self, name: object, flags: object) -> None:
        if isinstance(name, int):
            return
        path = _path(name)
        if self._is_closed(path):
            self._refuse("opened a file of the service", name)
        if isinstance(flags, int) and flags & WRITES:
            if not (_within(path, (self._folder,)) or _is_system(path, DEVICES)):
                self._refuse("wrote to a file outside its temporary folder", name)
        elif not (path.endswith((".py", ".pyc", ".so")) or _within(path, self._libraries) or _is_system(path, SYSTEM)):
            self.files.add(path)

    def _judge_address(self, event: str, arguments: tuple[Any, ...]) -> None:
        address = arguments[1] if event in SOCKETS else arguments[0]
        connected = event in SOCKETS and address is None
        in_folder = event in SOCKETS and isinstance(address, str | bytes) and _within(_path(address), (self._folder,))
        if not (connected or in_folder):  # processes of one training talk through sockets in the temporary folder
            self._refuse("reached for the network", address)

    def _judge_program(self, event: str, arguments: tuple[Any, ...]) -> None:
        given = arguments[1] if event == "subprocess.Popen" and arguments[1] else arguments[0]
        first = given[0] if isinstance(given, list | tuple) and given else given
        if Path(os.fsdecode(first)).name.split(" ")[0] not in TOOLS:
            self._refuse("started another program", first)

    def _judge_change(self, event: str, name: object) -> None:
        if isinstance(name, int) or name in (":memory:", ""):
            return
        path = _path(name)
        if event == "os.mkdir" and Path(path).is_dir():
            return
        if not _within(path, (self._folder,)):
            self._refuse("changed a file or folder outside its temporary folder", name)

    def _is_closed(self, path: str) -> bool:
        return _within(path, self._closed) and not _within(path, self._open)

    def _refuse(self, what: str, value: object) -> None:
        found = Attempt(what, self._place(), str(value))
        self.attempts.append(found)
        raise PermissionError(f"train {what}: {value}")

    def _place(self) -> str:
        """Return the recipe's line that is running, in words."""
        frame, folder = sys._getframe(), self._open[0]
        while frame is not None:
            if _within(frame.f_code.co_filename, (folder,)):
                return f" at line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; only Linux can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def leave_network() -> bool:
    """Move this process into a new network namespace, with no network in it; return whether the kernel allowed it.

    Without the right to do so, the process needs a new user namespace too, in which it stays the same user.
    """
    user, group = os.getuid(), os.getgid()
    try:
        unshare = ctypes.CDLL(None).unshare
    except (AttributeError, OSError):
        return False
    if unshare(CLONE_NEWNET) == 0:
        return True
    if unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def _path(name: object) -> str:
    return os.path.realpath(os.fsdecode(name))  # type: ignore[arg-type]


def _is_system(path: str, folders: Sequence[str]) -> bool:
    return _within(path, folders) and not _within(path, (SHARED_MEMORY,))


def _within(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
