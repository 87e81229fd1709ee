"""Confine this process while a recipe's code trains in it: no network, no file of the service, no other program.

Python's audit events (PEP 578) are refused and noted as they happen; what C code does by itself raises none. So where
the kernel allows it, the process has its own namespaces (``isolate``), and may write to its folder alone
(Landlock). Standard library alone: this is loaded before torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expunge.workers.runtime.kernel import (
    BETWEEN_FOLDERS,
    CHANGING,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    PR_SET_CHILD_SUBREAPER,
    TRUNCATING,
    keep_capabilities,
    landlock_version,
    mount,
    restrict,
)

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TOOLS = frozenset(
    {"c++", "cc", "clang", "clang++", "fc-list", "g++", "gcc", "ld", "ldconfig", "ninja", "ptxas", "uname"}
)
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
"""how the names of the environment variables begin that a child process is given"""
OTHERS_STATE = re.compile(r"/proc/[0-9]+/(environ|mem|fd|root|cwd)(/.*)?")
"""what the kernel shows of a process's variables, memory and files"""

COMPILED = "had torch.compile start another program"
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
FOLLOWING = {"os.chmod", "os.chown", "os.truncate", "sqlite3.connect"}
"""changes of what a link leads to; the others are changes of the link itself"""
LISTS = {"os.listdir", "os.scandir"}
SYSTEM = ("/dev", "/etc", "/lib", "/proc", "/sys", "/usr")
"""folders of the system, without people's data"""
DEVICES, SHARED_MEMORY = ("/dev",), "/dev/shm"  # noqa: S108  # nosec B108 (it is what is refused)
"""what lies in shared memory is a file like any other: it outlives the training that wrote it"""
LEAD_OUT = ("/run", "/tmp", "/var", SHARED_MEMORY, "/dev/hugepages", "/dev/mqueue", "/dev/pts")  # noqa: S108  # nosec B108
"""folders with sockets, which lead out of a network namespace, and with memory, queues and terminals that are shared"""
SOCKETS_IN_USE = Path("/proc/net/unix")
DAC_OVERRIDE = 1 << 1
"""to read what another user owns, as root may: no way out leads through it"""


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
    missed: set[str] = field(default_factory=set)
    """files that are not there, below a folder that ``isolate`` may have hidden"""

    def begin(self, own: Collection[str]) -> bool:
        """Hide the environment, move to the empty folder, install the audit hook. It cannot be undone.

        ``own``: the variables that the recipe set itself, which stay. Return whether the kernel refuses what is written
        outside the folder, by C code too.
        """
        sys.dont_write_bytecode = True
        kept = listed(os.environ) | {name: os.environ[name] for name in own if name in os.environ}
        os.environ.clear()
        os.environ.update(kept, HOME=str(self.folder), TMPDIR=str(self.folder), TORCHINDUCTOR_COMPILE_THREADS="1")
        os.chdir(self.folder)
        tempfile.tempdir = str(self.folder)
        self._folder = os.path.realpath(self.folder)
        self._closed = tuple(os.path.realpath(each) for each in self.closed)
        self._open = tuple(os.path.realpath(each) for each in (self.recipes, sys.prefix, sys.base_prefix, self.folder))
        packages = (each for each in sys.path if each.endswith("-packages"))
        self._libraries = (*self._open[1:], *(os.path.realpath(each) for each in packages))
        sealed = write_only_below((self.folder, *map(Path, DEVICES)))
        sys.addaudithook(self._judge)
        return sealed

    def _judge(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._judge_open(arguments[0], arguments[2])
        elif event in SOCKETS or event in NAMES:
            self._judge_address(event, arguments)
        elif event in PROGRAMS:
            self._judge_program(event, arguments)
        elif event in CHANGES:
            for name, folder in _changed(event, arguments):
                self._judge_change(event, name, folder)
        elif event in LISTS and self._is_closed(_path("." if arguments[0] is None else arguments[0])):
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
        elif _within(path, LEAD_OUT) and not Path(path).exists():
            self.missed.add(path)
        elif not (
            path.endswith((".py", ".pyc", ".so"))
            or _within(path, self._libraries)
            or _is_system(path, SYSTEM)
            or not Path(path).exists()  # an import tries each entry of sys.path, and some are names of hooks
        ):
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
        program = shutil.which(os.fsdecode(first).split(" ")[0])
        if program is None:  # it will not start
            return
        path = os.path.realpath(program)
        if Path(program).name not in TOOLS or _within(path, (self._folder, os.path.realpath(self.recipes))):
            self._refuse("started another program", first)

    def _judge_change(self, event: str, name: object, folder: object) -> None:
        if name in (":memory:", ""):
            return
        path = _path(name, folder, follow=event in FOLLOWING)
        if event == "os.mkdir" and Path(path).is_dir():
            return
        if not _within(path, (self._folder,)):
            self._refuse("changed a file or folder outside its temporary folder", name)

    def _is_closed(self, path: str) -> bool:
        if OTHERS_STATE.fullmatch(path) and not path.startswith(f"/proc/{os.getpid()}/"):
            return True
        return _within(path, self._closed) and not _within(path, self._open)

    def _refuse(self, what: str, value: object) -> None:
        if what == "started another program" and _compiling():
            what = COMPILED
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


def _compiling() -> bool:
    """Tell whether torch.compile is at work, which builds and starts programs."""
    frame = sys._getframe()
    while frame is not None:
        if "torch/_inductor/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it. Raises OSError."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("the kernel gives this process no orphans")


def end_children() -> None:
    """Kill the processes below this one, which has one thread, until there are none."""
    with suppress(ChildProcessError):  # there are none
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for child in _children():
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)


def _children() -> list[int]:
    """Return the children of this process, as the kernel lists them."""
    mine, found = os.getpid(), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == mine:
                found.append(int(stat.parent.name))
    return found


def listed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a child process is given: an allow-list."""
    return {name: value for name, value in environment.items() if name.startswith(KEPT)}


@dataclass(frozen=True)
class Isolation:
    """What the kernel gave: processes that end with the first of them and hidden files, and no way out.

    ``no_network``: no network, and no socket or shared memory that leads to a process outside.
    """

    apart: bool
    no_network: bool


def isolate(
    hidden: Sequence[Path], needed: Sequence[Path], *, linked: Sequence[Path], network: bool, folders: bool
) -> Isolation:
    """Give the processes that this one forks their own namespaces, as far as the kernel allows it.

    The first that it forks must call ``closed_in``. What is ``hidden`` is empty for them, but for what is ``needed``.
    ``linked``: what is needed too, unless it lies in something ``hidden``. ``network``, ``folders``: leave them that,
    and ``LEAD_OUT``.
    """
    less = CLONE_NEWIPC | (0 if network else CLONE_NEWNET)
    sockets = _sockets()
    if not _unshared(CLONE_NEWPID | CLONE_NEWNS | less):
        if not network:  # it has no network then, but sockets lead out
            _unshared(CLONE_NEWNET)
        return Isolation(False, False)
    kept = [os.path.realpath(each) for each in needed]
    shut = _mount(None, "/", None, MS_REC | MS_PRIVATE)
    if not folders:
        working = _working_folder()
        leading = {os.path.realpath(each) for each in LEAD_OUT if Path(each).is_dir()}
        for path in leading:
            if not _within(path, [*leading - {path}]):
                shut &= _empty(path, [*kept, *map(os.path.realpath, linked)])
        shut &= all([_covered(each) for each in sockets])
        _enter(working)
    for path in map(os.path.realpath, hidden):
        if not any(_within(each, (path,)) for each in kept):
            _hide(path)
    return Isolation(True, shut and not (network or folders))


def links_in(folder: Path) -> list[Path]:
    """Return the links in a folder, and in those below it."""
    below = (Path(place) / name for place, folders, files in os.walk(folder) for name in (*folders, *files))
    return [each for each in below if each.is_symlink()]


def closed_in() -> bool:
    """Let /proc show the processes of this namespace alone, and give up the rights that would undo ``isolate``.

    Return whether both were done.
    """
    alone = _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    return _without_rights() and alone


def _without_rights() -> bool:
    """Give up every capability but ``DAC_OVERRIDE``; return whether that was done.

    A process that makes namespaces of its own afterwards finds what is mounted here locked.
    """
    for mask in (DAC_OVERRIDE, 0):  # none, where it never had that one
        with suppress(AttributeError, OSError):
            keep_capabilities(mask)
            return True
    return False


def _sockets() -> list[str]:
    """Return the paths of the Unix sockets that processes of this network namespace have bound."""
    with suppress(OSError):
        lines = (line.split(maxsplit=7) for line in SOCKETS_IN_USE.read_text(errors="surrogateescape").splitlines())
        names = {line[7] for line in lines if len(line) == 8 and line[7].startswith("/")}
        return sorted(map(os.path.realpath, names))
    return []


def _covered(path: str) -> bool:
    """Put an empty device in the place of a socket, where there is one; return whether none is left."""
    return not Path(path).exists() or _mount("/dev/null", path, None, MS_BIND)


def _working_folder() -> str:
    """Return the current folder, or the root where it is gone."""
    try:
        return os.getcwd()  # noqa: PTH109 (a name)
    except OSError:
        return "/"


def _enter(folder: str) -> None:
    """Enter the folder anew, by its name: an open one leads to what is hidden by now. Where it is hidden, the root."""
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/")


def _empty(path: str, needed: Sequence[str]) -> bool:
    """Mount an empty folder, and what is needed of the old one; return whether that was done.

    It is not where all of the folder is needed.
    """
    if any(_within(path, (each,)) for each in needed):
        return False
    inside = {each for each in needed if _within(each, (path,)) and Path(each).exists()}
    outermost = [each for each in inside if not _within(each, [*inside - {each}])]
    folders = {each for each in outermost if Path(each).is_dir()}
    opened = {each: os.open(each, os.O_PATH) for each in outermost}
    try:
        done = _mount("none", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        for target, handle in opened.items():
            if target in folders:
                Path(target).mkdir(parents=True)
            else:
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                Path(target).touch()
            done &= _mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC)
    finally:
        for handle in opened.values():
            os.close(handle)
    return done


def _hide(path: str) -> None:
    if Path(path).is_dir():
        _mount("none", path, "tmpfs", MS_RDONLY)
    elif Path(path).exists():
        _mount("/dev/null", path, None, MS_BIND)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> bool:
    try:
        mount(source, target, kind, flags, options)
    except (AttributeError, OSError):
        return False
    return True


def _unshared(flags: int) -> bool:
    """Move what this process forks into new namespaces; return whether the kernel allowed it.

    Without the right to do so, the process needs a new user namespace too, in which it stays the same user.
    """
    user, group = os.getuid(), os.getgid()
    try:
        unshare = ctypes.CDLL(None).unshare
    except (AttributeError, OSError):
        return False
    if unshare(flags) == 0:
        return True
    if unshare(CLONE_NEWUSER | flags) != 0:
        return False
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def write_only_below(folders: Sequence[Path]) -> bool:
    """Let this process, and what it starts, change no file outside ``folders``; return whether the kernel can.

    That is Landlock. C code is held to it too. Threads that run already are not.
    """
    if landlock_version() < 1:
        return False
    rights = CHANGING | BETWEEN_FOLDERS | TRUNCATING
    try:
        restrict({str(folder): rights for folder in folders}, rights)
    except OSError:
        return False
    return True


def _changed(event: str, arguments: tuple[Any, ...]) -> Sequence[tuple[object, object]]:
    """Return what an event changes: names, each with the open folder that it counts from, -1 for the current one."""
    match event, arguments:
        case "os.rename" | "os.link", (source, target, from_folder, to_folder):
            return (source, from_folder), (target, to_folder)
        case "os.symlink", (_, target, folder):
            return ((target, folder),)
        case "os.mkdir" | "os.chmod", (name, _, folder):
            return ((name, folder),)
        case "os.chown", (name, _, _, folder):
            return ((name, folder),)
        case "os.remove" | "os.rmdir", (name, folder):
            return ((name, folder),)
    return ((arguments[0], -1),)


def _path(name: object, folder: object = -1, *, follow: bool = True) -> str:
    """Return the whole path of a name, of a last link itself unless it is followed; or where an open file lies."""
    path = f"/proc/self/fd/{name}" if isinstance(name, int) else os.fsdecode(name)  # type: ignore[arg-type]
    if isinstance(folder, int) and folder >= 0:
        path = os.path.join(f"/proc/self/fd/{folder}", path)  # noqa: PTH118
    if follow or isinstance(name, int):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # noqa: PTH118, PTH120, PTH119


def _is_system(path: str, folders: Sequence[str]) -> bool:
    return _within(path, folders) and not _within(path, (SHARED_MEMORY,))


def _within(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
