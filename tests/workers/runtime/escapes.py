"""A recipe that tries every way out of its world, by Python and by C; the tests hand it over as code."""

# An attempt is the call that the kernel sees.
# ruff: noqa: PTH101, PTH102, PTH109, PTH116, PTH208

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SHARED: list[str] = []
"""a global of the module"""


def attempt(_: memoryview, library: str | None, target: Mapping[str, Any]) -> dict[str, str]:
    """Return for each way out ``through``, or the name of the error."""
    ways = by_python(target) | (by_c(ctypes.CDLL(library, use_errno=True), target) if library else {})
    return {name: outcome(way) for name, way in ways.items()}


def outcome(way: Callable[[], object]) -> str:
    try:
        way()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "through"


def by_python(target: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    parent, package = target["parent"], target["package"]
    return {
        "read": lambda: Path(target["secret"]).read_bytes(),
        "list": lambda: os.listdir(Path(target["secret"]).parent),
        "stat": lambda: os.stat(target["secret"]),
        "read home": lambda: os.listdir(target["home"]),
        "leave through a folder": lambda: Path("../../../.." + target["secret"]).read_bytes(),
        "write beside": lambda: Path(target["secret"]).with_name("left").write_bytes(b"row"),
        "touch a package": lambda: os.utime(package),
        "change a package's mode": lambda: os.chmod(package, os.stat(package).st_mode & 0o777),
        "write into a package": lambda: os.open(package, os.O_WRONLY),
        "write into the system": lambda: os.mkdir("/usr/lib/left"),
        "socket by path": lambda: connect(socket.AF_UNIX, target["socket"]),
        "abstract socket": lambda: connect(socket.AF_UNIX, "\0" + target["abstract"]),
        "port": lambda: connect(socket.AF_INET, ("127.0.0.1", target["port"])),
        "shared memory": lambda: Path(target["memory"]).read_bytes(),
        "variables of the parent": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
        "command line of the parent": lambda: Path(f"/proc/{parent}/cmdline").read_bytes(),
        "signal to the parent": lambda: os.kill(parent, 0),
        "root of the parent": lambda: os.listdir(f"/proc/{parent}/root"),
        "descriptors": read_descriptors,
        "change the machine": lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
        "trigger": lambda: os.open("/proc/sysrq-trigger", os.O_WRONLY),
        "become root": lambda: os.setuid(0),
        "change the root": lambda: os.chroot("/tmp"),
    }


def by_c(c: ctypes.CDLL, target: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    parent = target["parent"]
    calls: dict[str, tuple[Any, ...]] = {
        "read": (c.read_file, target["secret"]),
        "list": (c.list_folder, str(Path(target["secret"]).parent)),
        "stat": (c.stat_file, target["secret"]),
        "touch a package": (c.touch_file, target["package"]),
        "change a package's mode": (c.change_mode, target["package"]),
        "socket by path": (c.reach_socket, target["socket"]),
        "abstract socket": (c.reach_socket, "@" + target["abstract"]),
        "port": (c.reach_port, target["port"]),
        "io_uring": (c.start_io_uring,),
        "System V": (c.attach_memory, target["key"]),
        "leave a key": (c.leave_key, target["abstract"]),
        "find a key": (c.find_key, target["abstract"]),
        "shared memory": (c.read_file, target["memory"]),
        "trace the parent": (c.trace_process, parent),
        "memory of the parent": (c.read_memory, parent),
        "signal to the parent": (c.signal_process, parent),
        "namespace of the parent": (c.enter_namespace, f"/proc/{parent}/ns/net"),
        "mount again": (c.mount_again,),
        "device": (c.make_device, "/tmp/disk"),
        "32-bit call": (c.call_as_32_bit,),
        "x32 call": (c.call_as_x32,),
    }
    return {f"{name} (C)": lambda call=call: run(*call) for name, call in calls.items()}  # type: ignore[misc]


def run(function: Any, *arguments: Any) -> None:
    failed = function(*(value.encode() if isinstance(value, str) else value for value in arguments))
    if failed:
        raise OSError(failed, os.strerror(failed))


def connect(family: int, address: Any) -> None:
    with socket.socket(family) as channel:
        channel.settimeout(5)
        channel.connect(address)


def read_descriptors() -> None:
    """Read every descriptor that there is; raise where none has a byte to give."""
    for number in range(1024):
        try:
            status = os.fstat(number)
            given = os.pread(number, 5, 0)
        except OSError:
            continue
        if given not in (b"", b"rows ") and status.st_rdev != os.stat("/dev/urandom").st_rdev:
            return
    raise OSError(errno.EBADF, "nothing")


def look_around(_: memoryview) -> dict[str, Any]:
    """Return what a world sees of itself."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
        "no_new_privs": status["NoNewPrivs"],
        "variables": dict(os.environ),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "host": socket.gethostname(),
        "lists": {path: sorted(os.listdir(path)) for path in ("/tmp", "/dev/shm", "/run", "/world", "/world/home")},
        "devices": sorted(name for name in os.listdir("/dev") if not name.startswith("nvidia")),
    }


def leave(rows: memoryview, name: str) -> str:
    """Leave a trace wherever a part may write."""
    for folder in (os.environ["HOME"], os.environ["TMPDIR"], "/dev/shm", "/run", "/var/tmp", os.getcwd()):
        try:
            Path(folder, name).write_bytes(b"row")
        except OSError:
            continue
    SHARED.append(name)
    return bytes(rows).decode()


def find(rows: memoryview, name: str) -> list[str]:
    """Return what another part left, and the rows."""
    folders = (os.environ["HOME"], os.environ["TMPDIR"], "/dev/shm", "/run", "/var/tmp", "/world", "/world/code")
    return [folder for folder in folders if Path(folder, name).exists()] + SHARED + [bytes(rows).decode()]


def write_rows(rows: memoryview) -> dict[str, Any]:
    """Write into the rows, as C code does, from a process that is forked for it; return how it ended."""
    address = np.frombuffer(rows, np.uint8).ctypes.data
    child = os.fork()
    if child == 0:
        ctypes.memset(address, 0, 1)
        os._exit(0)
    return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "rows": bytes(rows).decode()}


def unlock_rows(rows: memoryview) -> str:
    """Make the rows writable for this process first, and write: that must change this one's alone."""
    address = np.frombuffer(rows, np.uint8).ctypes.data
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 3) == 0:
        ctypes.memset(address, 0, len(rows))
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.pread(number, 5, 0) == b"rows ":
                os.pwrite(number, b"left", 0)
        except OSError:
            continue
    return bytes(rows).decode()
