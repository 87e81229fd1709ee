"""System calls of Linux that confine a process: namespaces, mounts, capabilities, Landlock and filters of calls.

Standard library alone: this is loaded before torch. Every function raises OSError where the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 1 << 26, 1 << 28, 1 << 29, 1 << 30
CLONE_NEWIPC = 0x8000000
"""memory and queues that outlive the process which made them"""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 0x40000
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls, the same on every processor"""
MOUNT_SETATTR = 442
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPABILITIES = 0x20080522
"""the version of the header of capset(2)"""

MADV_COLLAPSE, HUGE_PAGE = 25, 2 << 20
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2

READING = 1 << 0 | 1 << 2 | 1 << 3
"""Landlock's rights to run and read a file, and to list a folder"""
CHANGING = 1 << 1 | sum(1 << bit for bit in range(4, 13))
"""those of its first version that change a file or folder: to write, remove and make"""
BETWEEN_FOLDERS, TRUNCATING, DEVICES = 1 << 13, 1 << 14, 1 << 15
"""those of its second, third and fifth version"""
OF_A_FILE = 1 << 0 | 1 << 1 | 1 << 2 | TRUNCATING | DEVICES
"""rights that a rule for a single file may name"""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""how seccomp(2) names the ABI of a call"""
X32 = 0x40000000
"""the bit in the number of a call of x86-64's second ABI"""


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(status: int, name: str, path: str | None = None) -> int:
    if status < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}", path)
    return status


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; only Linux can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_memory(handle: int, start: int, size: int) -> None:
    """Free the memory behind a stretch of a file in memory, which then reads as zeros."""
    punched = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    _checked(libc().fallocate(handle, punched, ctypes.c_int64(start), ctypes.c_int64(size)), "fallocate")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it."""
    _checked(libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def collapse_memory() -> None:
    """Have this process's own memory lie in huge pages, so that a fork copies few entries of the table of pages.

    A kernel before Linux 6.1, or one without huge pages, leaves it as it is.
    """
    call = libc().madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *_ = line.split(maxsplit=5)
        start, stop = (int(address, 16) for address in span.split("-"))
        start, stop = -(-start // HUGE_PAGE) * HUGE_PAGE, stop // HUGE_PAGE * HUGE_PAGE
        if inode == "0" and rights.startswith("rw") and start < stop:
            call(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), MADV_COLLAPSE)


def unshare(flags: int) -> None:
    """Move this process into new namespaces; of a new PID namespace, what it forks is a part."""
    _checked(libc().unshare(flags), "unshare")


def unshare_as_user(flags: int, inside: int) -> None:
    """Do so in a user namespace of this process's own, where its user and group have the number ``inside``."""
    user, group = os.geteuid(), os.getegid()  # asked afterwards, they are nobody's: nothing is mapped yet
    unshare(CLONE_NEWUSER | flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{inside} {group} 1")


def become(user: int) -> None:
    """Let root become another user, without groups or capabilities."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # The kernel hides /proc/self of a process that changed its user, and a map of users is written there.
    _checked(libc().prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    named = [None if name is None else os.fsencode(name) for name in (source, target, kind)]
    _checked(libc().mount(*named, flags, None if options is None else options.encode()), "mount", target)


def make_read_only(target: str, *, below: bool) -> None:
    """Refuse writing through a mount, and set-uid programs; ``below``: through all mounts below it too."""
    attributes = struct.pack("=4Q", MS_RDONLY | MS_NOSUID, 0, 0, 0)
    recursive = 0x8000 if below else 0
    status = libc().syscall(MOUNT_SETATTR, -100, os.fsencode(target), recursive, attributes, len(attributes))
    _checked(status, "mount_setattr", target)


def pivot_root(root: str, old: str) -> None:
    """Make a mount the root of this namespace, and put the old root below it."""
    number = PIVOT_ROOT[platform.machine()]
    _checked(libc().syscall(number, os.fsencode(root), os.fsencode(old)), "pivot_root", root)


def detach(target: str) -> None:
    """Take a mount, and all below it, out of the tree of files."""
    _checked(libc().umount2(os.fsencode(target), 2), "umount2", target)


def keep_capabilities(mask: int) -> None:
    """Give up every capability but the first 32 in ``mask``, for good: what this process starts regains none."""
    _checked(libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    rights = struct.pack("=6I", mask, mask, 0, 0, 0, 0)
    _checked(libc().capset(struct.pack("=Ii", CAPABILITIES, 0), rights), "capset")


def landlock_version() -> int:
    """Return the version of Landlock's ABI; 0 where the kernel has none."""
    with suppress(AttributeError, OSError):
        return max(0, int(libc().syscall(CREATE_RULESET, None, 0, 1)))
    return 0


def restrict(rules: Mapping[str, int], handled: int, *, network: int = 0, scoped: int = 0) -> None:
    """Let this process, and what it starts, use only the rights that ``rules`` give below each path.

    That is Landlock. C code is held to it too. Threads that run already are not.

    Args:
        rules: by path, the rights for it and what is below it.
        handled: the rights that are refused elsewhere; those that the kernel does not know yet are left out.
        network: rights of TCP that are refused (version 4); scoped: what may not reach a process outside (version 6).
    """
    version = landlock_version()
    newer = {BETWEEN_FOLDERS: 2, TRUNCATING: 3, DEVICES: 5}
    handled &= ~sum(right for right, since in newer.items() if version < since)
    fields = (handled, network, scoped)[: 1 if version < 4 else 2 if version < 6 else 3]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    call = libc().syscall
    ruleset = _checked(call(CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset")
    try:
        for path, rights in rules.items():
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = rights & handled & (-1 if Path(path).is_dir() else OF_A_FILE)
                _checked(call(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, handle), 0), "landlock_add_rule", path)
            finally:
                os.close(handle)
        _checked(libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        _checked(call(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def refuse_calls(numbers: Iterable[int]) -> None:
    """Refuse these system calls with EPERM, and every call of an ABI that is not the processor's first.

    The program is one of classic BPF, run at each call of this process and of what it starts (seccomp(2)).
    """
    load, equals, at_least, answer = 0x20, 0x15, 0x35, 0x06
    refuse, allow = (answer, 0, 0, 0x50001), (answer, 0, 0, 0x7FFF0000)
    program = [(load, 0, 0, 4), (equals, 1, 0, ARCHITECTURES[platform.machine()]), refuse]
    program += [(load, 0, 0, 0), (at_least, 0, 1, X32), refuse]
    for number in numbers:
        program += [(equals, 0, 1, number), refuse]
    program.append(allow)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    _checked(libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _checked(libc().prctl(PR_SET_SECCOMP, 2, header, 0, 0), "prctl(PR_SET_SECCOMP)")
