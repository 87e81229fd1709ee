"""A world: a process behind walls that imports a recipe, and a child of it for each part of a training.

A part is a function of its files: it gets them when its walls stand, and answers with JSON and bytes. What it is scored
by comes once these are out. Parts share the imported module and nothing else. The caller, which has a single thread and
has loaded the libraries, forks the world.
"""

from __future__ import annotations

import errno
import importlib
import json
import mmap
import os
import random
import re
import secrets
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from expunge_workers.runtime import kernel
from expunge_workers.runtime.messages import CPU, receive, send
from expunge_workers.runtime.ranks import fork_ranks
from expunge_workers.runtime.walls import FOLDER, NOBODY, Wall, Walls, enter

READY = b"."
KINDS = {Wall.ROOT: "mnt", Wall.NETWORK: "net", Wall.IPC: "ipc", Wall.PID: "pid"}
"""how the kernel names the namespace behind a wall"""
SHARED = re.compile(r"^\S+ \S{3}s .*$", re.MULTILINE)
"""a line of /proc/PID/maps about memory that is shared"""
SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
POLL_SECONDS = 3600.0
"""between two looks at the clock; the kernel counts milliseconds in 31 bits"""
LONGEST_ANSWER = 16 << 20
"""bytes of the JSON of an answer; what is longer belongs into its data"""

ADVISING = ("RecipeError", "Refused")
"""errors of the library that say what happened and what to write instead; the texts of others may name a person"""
FULL = {errno.ENOSPC: "ENOSPC", errno.EDQUOT: "EDQUOT"}
"""errors of a disk without room, which may pass"""
MAY_PASS = frozenset({"MemoryError", *FULL.values()})
IN_SCORE = " in its score"
"""behind the type of an error of what scores a part: it is not met where the recipe is called by hand"""
POINT = "point "
"""how the one kind of file begins that a part writes to while it trains (``points``)"""
ENDED_ITSELF = 3
"""the exit status of a world of which a part ended by itself, and was not killed"""

Files = Mapping[str, memoryview]
Score = Callable[[Files], Mapping[str, Any]]
"""from files that the part was not given to facts"""
Job = Callable[[ModuleType, Files, Mapping[str, Any]], tuple[Mapping[str, Any], bytes, Score | None]]
"""what a part does: from the recipe's module, its files and its order to facts, bytes, and what scores these"""


@dataclass(frozen=True)
class Code:
    """The recipe's code: the module to import, and the text of each ``.py`` file by its path below one folder."""

    module: str
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class PartInput:
    """What one part is given: sealed files in memory by name (``seal``), and its order as plain JSON.

    ``aside``: such files that it is handed once its data are out, to be scored by; None: it is not scored. ``seed``: of
    every global generator.
    """

    files: Mapping[str, int]
    order: Mapping[str, Any]
    aside: Mapping[str, int] | None = None
    seed: int = 0


@dataclass(frozen=True)
class _Task:
    """What a world does for every part: its code and its job, with so many threads; and the files of each part."""

    code: Code
    job: Job
    threads: int


@dataclass(frozen=True)
class PartAnswer:
    """What a part answered: facts as plain JSON, bytes in memory, and the facts of its score where it was asked."""

    facts: dict[str, Any]
    data: memoryview
    score: dict[str, Any] | None
    cpu_seconds: float
    """that the part says it took, with what it started"""


Ask = Callable[[PartInput], PartAnswer]


class Raised(Exception):
    """The recipe's code raised an error: its type, the path that was refused if any, and the file and line.

    ``advice``: the sentence and the hint of a ``RecipeError`` or ``Refused``.
    """

    def __init__(
        self,
        error: str,
        path: str | None = None,
        file: str | None = None,
        line: int | None = None,
        advice: Sequence[str] | None = None,
    ) -> None:
        self.error, self.path, self.file, self.line, self.advice = error, path, file, line, advice
        place = "" if file is None else f" at line {line} of {file}"
        super().__init__(f"The recipe raised {error}{'' if path is None else f' for {path}'}{place}.")


class WorldEnded(RuntimeError):
    """The world gave no answer that counts: it was killed, ended itself, could not be walled in, or forged one."""


@dataclass(frozen=True)
class Wait:
    """Until when an answer is waited for, and who asked: there is none for a ``caller`` whose end is closed."""

    deadline: float
    caller: socket.socket | None = None

    @property
    def seconds(self) -> float:
        return max(0.001, self.deadline - time.monotonic())

    def until_ready(self, channel: socket.socket) -> None:
        """Wait until something can be read from the channel. Raises TimeoutError, WorldEnded."""
        both = select.poll()
        both.register(channel, select.POLLIN)
        if self.caller is not None:
            both.register(self.caller, select.POLLRDHUP)
        while not (ready := dict(both.poll(1000 * min(self.seconds, POLL_SECONDS)))):
            if time.monotonic() >= self.deadline:
                raise TimeoutError
        if self.caller is not None and self.caller.fileno() in ready:
            raise WorldEnded("The process that asked for it has ended.")


def seal(data: bytes | memoryview | int) -> int:
    """Return a file in memory with this data, or such a file itself, that nobody can write to any more."""
    if isinstance(data, int):
        fcntl(data, F_ADD_SEALS, SEALS)
        return data
    descriptor = os.memfd_create("rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _write(descriptor, data)
    return seal(descriptor)


@contextmanager
def open_world(
    code: Code,
    job: Job,
    count: int,
    walls: Walls,
    *,
    seconds: float,
    threads: int = 1,
    caller: socket.socket | None = None,
) -> Iterator[Ask]:
    """Import the recipe behind the walls once, and yield what carries out the job for one part more.

    All ``count`` parts are forked before the first gets its files, so nothing of one reaches another. When this ends,
    every process of the world has ended.

    Args:
        seconds: for all parts together. threads: of each part's sums. caller: for whom it is made; where that end of
            the channel is closed, the world ends.

    Raises:
        Raised: the recipe's code raised.
        WorldEnded: a part gave no answer, or not behind the walls.
        TimeoutError: the world did not end in time.
    """
    wait = Wait(time.monotonic() + seconds, caller)
    pairs = [socket.socketpair() for _ in range(count)]
    for ours, _ in pairs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with _folder(walls) as own:
        parent = os.getpid()
        world = os.fork()
        if world == 0:
            _end_with(parent)
            task, channels = _Task(code, job, threads), [theirs for _, theirs in pairs]
            _run(channels[0], lambda: _be_world(task, channels, own))
        try:
            ends = [os.fstat(theirs.fileno()).st_ino for _, theirs in pairs]
            for _, theirs in pairs:
                theirs.close()
            namespaces = _namespaces(parent)
            # All walls stand before any part trains: the numbers of namespaces that ended are given out again.
            for (ours, _), end in zip(pairs, ends, strict=True):
                _inspect(_await_walls(ours, wait), end=end, walls=own, others=namespaces)
            free = iter(ours for ours, _ in pairs)
            yield lambda part: _ask(next(free), part, wait)
            _close(pairs)
            _end(world, signals=(0, signal.SIGTERM, signal.SIGKILL))
        except WorldEnded as error:
            _close(pairs)
            if _end(world, signals=(0, signal.SIGTERM, signal.SIGKILL)) == ENDED_ITSELF:
                raise Raised("SystemExit") from error
            raise
        except BaseException:
            _end(world, signals=(signal.SIGTERM, signal.SIGKILL))
            raise
        finally:
            _close(pairs)


def _close(pairs: Sequence[tuple[socket.socket, socket.socket]]) -> None:
    """Close our ends: a part that was not asked for anything ends then."""
    for ours, _ in pairs:
        ours.close()


@contextmanager
def _folder(walls: Walls) -> Iterator[Walls]:
    """Give the world a folder: a new one behind a new root, and one of this machine where there is none."""
    if Wall.ROOT in walls.standing:
        yield walls
        return
    with tempfile.TemporaryDirectory(prefix="expunge-world-", ignore_cleanup_errors=True) as name:
        if os.geteuid() == 0:
            os.chown(name, NOBODY, NOBODY)
        yield replace(walls, folder=os.path.realpath(name))


def _await_walls(channel: socket.socket, wait: Wait) -> int:
    """Return the process of a part whose walls stand. Raises TimeoutError, Raised, WorldEnded."""
    channel.settimeout(wait.seconds)
    word, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(12))
    if word == READY:
        (credentials,) = (data for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
        process: int = struct.unpack("=3i", credentials)[0]
        return process
    reply = _parse(word + _read(channel, wait, line=False))
    _refuse(reply)
    raise WorldEnded(f"The world could not be made. {reply.get('broken', 'It ended before its walls stood.')}")


def _ask(channel: socket.socket, part: PartInput, wait: Wait) -> PartAnswer:
    """Hand its files to a part, and wait for its answer, its score and its end."""
    answer = os.memfd_create("answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        words = {"order": part.order, "files": [*part.files], "scored": part.aside is not None, "seed": part.seed}
        facts = _exchange(channel, words, [*part.files.values(), answer], wait)
        used = facts.pop(CPU, None)
        data, score = _mapped(seal(answer)), None
        if part.aside is not None:
            score = _exchange(channel, {"files": [*part.aside]}, [*part.aside.values()], wait)
        channel.shutdown(socket.SHUT_WR)
        _read(channel, wait, line=False)
        return PartAnswer(facts, data, score, used if isinstance(used, float) else 0.0)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise WorldEnded("A part of the world left its answer open to others.") from error
    finally:
        os.close(answer)


def _exchange(
    channel: socket.socket, words: Mapping[str, Any], descriptors: Sequence[int], wait: Wait
) -> dict[str, Any]:
    """Send words with descriptors, and return the facts of the reply to them. Raises Raised, WorldEnded."""
    nonce = secrets.token_hex(16)
    channel.settimeout(wait.seconds)
    with suppress(BrokenPipeError):  # it ended meanwhile, which is found below
        send(channel, {"nonce": nonce, **words}, descriptors)
    reply = _parse(_read(channel, wait, line=True))
    if reply.get("nonce") == nonce:
        _refuse(reply)
        facts = reply.get("facts")
        if isinstance(facts, dict):
            return facts
    raise WorldEnded("A part of the world ended without an answer to its order.")


def _refuse(reply: Mapping[str, Any]) -> None:
    """Raise what the recipe's code raised, where the reply says so."""
    match reply.get("raised"):
        case [str(error), path, file, line, advice]:
            raise Raised(error, path, file, line, advice)


def _parse(text: bytes) -> dict[str, Any]:
    """Return the words of a reply; none where a process of the world wrote something else."""
    with suppress(ValueError, RecursionError):
        reply = json.loads(text)
        if isinstance(reply, dict):
            return reply
    return {}


def _read(channel: socket.socket, wait: Wait, *, line: bool) -> bytes:
    """Return what comes, until a line ends or every process that holds the other end has ended.

    Raises TimeoutError, WorldEnded.
    """
    text = bytearray()
    while not (line and text.endswith(b"\n")):
        wait.until_ready(channel)
        more = b""
        with suppress(ConnectionResetError):  # it ended before it read its order
            more = channel.recv(1 << 16)
        if not more:
            break
        text += more
        if len(text) > LONGEST_ANSWER:
            raise WorldEnded(f"A part answered more than {LONGEST_ANSWER} bytes of JSON: return them as data.")
    return bytes(text)


def _inspect(process: int, *, end: int, walls: Walls, others: set[str]) -> None:
    """Look at a part from outside before it gets its rows; raise WorldEnded where it shares anything with others.

    ``end``: the inode of its end of the channel. ``others``: the namespaces of others, to which its own are added.
    """
    try:
        shared = _find_shared(Path(f"/proc/{process}"), _namespaces(process) & others, end, walls)
        others |= _namespaces(process)
    except OSError as error:
        raise WorldEnded("A part of the world ended before it was given its rows.") from error
    if shared is not None:
        raise WorldEnded(shared)


def _find_shared(folder: Path, namespaces: set[str], end: int, walls: Walls) -> str | None:
    """Say what a process shares with others, by its folder in /proc; None where it shares nothing."""
    kinds = {KINDS[wall] for wall in walls.standing if wall in KINDS}
    common = sorted(name for name in namespaces if name.partition(":")[0] in kinds)
    if common:
        return f"A part has no namespace of its own: {', '.join(common)}."
    null = Path(os.devnull).stat().st_rdev
    for descriptor in folder.glob("fd/*"):
        status = descriptor.stat()
        if status.st_ino != end and status.st_rdev != null:
            return f"A part holds a descriptor that it was not given: {descriptor.readlink()}."
    for line in SHARED.findall((folder / "maps").read_text()):
        _, rights, _, _, inode, *path = line.split(maxsplit=5)
        library = path and any(path[0].startswith(f"{opened}/") for opened in walls.opened)
        if not (library and inode != "0" and "w" not in rights):
            return (
                f"The recipe's module makes memory that its parts would share ({(path or ['without a name'])[0]}). "
                "Make it in the function instead, which each part calls."
            )
    return None


def _namespaces(process: int) -> set[str]:
    """Return the namespaces of a process, and those for its children, as the kernel names them."""
    return {str(link.readlink()) for link in Path(f"/proc/{process}/ns").iterdir()}


def _mapped(descriptor: int) -> memoryview:
    """Return what is in a file in memory, without a copy, for reading."""
    if not os.fstat(descriptor).st_size:
        return memoryview(b"")
    # Linux before 6.7 refuses MAP_SHARED of a file that is sealed against writing; nobody writes here anyway.
    return memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))


def _end(world: int, signals: Sequence[int]) -> int:
    """Send these signals to the world, some seconds apart (0: none), until it and all of its processes have ended.

    Return its exit status.
    """
    watched = os.pidfd_open(world)
    for number in signals:
        os.kill(world, number)
        if select.select([watched], [], [], 5)[0]:
            break
    os.close(watched)
    return os.waitstatus_to_exitcode(os.waitpid(world, 0)[1])


def _end_with(caller: int) -> None:
    kernel.die_with_parent()
    if os.getppid() != caller:
        os._exit(1)


def _run(channel: socket.socket, task: Callable[[], None]) -> NoReturn:
    """Run the task in this fork, and end it; what fails of ours is told on the channel."""
    try:
        task()
    except BaseException as error:
        with suppress(OSError):
            send(
                channel, {"broken": str(error) if isinstance(error, WorldEnded) else f"{type(error).__name__}: {error}"}
            )
    finally:
        os._exit(0)


def _be_world(task: _Task, channels: Sequence[socket.socket], walls: Walls) -> None:
    enter(walls, threads=task.threads, last=False, keep=[channel.fileno() for channel in channels])
    folder = f"{walls.folder}/code"
    for name, text in task.code.files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    _seed(task, 0)
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(task.code.module)
    except BaseException as error:  # SystemExit too
        return send(channels[0], {"raised": _describe(error, folder)})
    if Wall.PID in walls.standing and len([*Path("/proc").glob("[0-9]*")]) > 1:  # one could look into every part
        raise WorldEnded("The recipe's module starts processes. Start them in the function, which each part calls.")
    world, children = os.getpid(), []
    for number, channel in enumerate(channels):
        own = walls.folder if walls.folder == FOLDER else f"{walls.folder}/part-{number}"
        inner = replace(walls, folder=own, opened=(*walls.opened, folder), closed=(), declared=())
        child = os.fork()
        if child == 0:
            _end_with(world)
            Path(own).mkdir(exist_ok=True)
            _run(channel, partial(_be_part, task, module, channel, inner))
        channel.close()
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(status > 0 for status in statuses):
        os._exit(ENDED_ITSELF)
    return None


def _be_part(task: _Task, module: ModuleType, channel: socket.socket, walls: Walls) -> None:
    enter(walls, threads=task.threads, keep=[channel.fileno()])
    channel.sendall(READY)
    words, files = receive(channel)
    if words is None:
        return
    *tables, answer = files
    nonce = words["nonce"]

    def failed(raised: Sequence[Any] | None) -> None:
        if raised is not None:
            send(channel, {"nonce": nonce, "raised": raised})
        os._exit(0)

    ranks = fork_ranks(words["order"].get("processes", 1), failed)
    channel = ranks.channel or channel
    _seed(task, words["seed"])
    scoring = False
    try:
        order = {**words["order"], "rank": ranks.rank}
        facts, data, score = task.job(module, open_files(words["files"], tables), order)
        if ranks.rank == 0:
            _write(answer, data)
        os.close(answer)
        used = sum(os.times()[:4]) + ranks.await_others()
        send(channel, {"nonce": nonce, "facts": {**facts, CPU: used}})
        if not words["scored"] or ranks.rank:
            return
        words, files = receive(channel)
        scoring = True
        if words is not None:
            facts = {} if score is None else score(open_files(words["files"], files))
            send(channel, {"nonce": words["nonce"], "facts": dict(facts)})
    except BaseException as error:  # SystemExit too
        raised = _describe(error, walls.opened[-1])
        if raised[0] not in MAY_PASS:  # the worker knows these by their bare names
            raised[0] += ranks.place + (IN_SCORE if scoring else "")
        ranks.let_others_speak()
        send(channel, {"nonce": words and words["nonce"], "raised": raised})


def open_files(names: Sequence[str], descriptors: Sequence[int]) -> dict[str, memoryview]:
    """Return what is in these files in memory, by their names; the descriptors are closed. Points can be written to."""
    files = {
        name: memoryview(mmap.mmap(descriptor, 0)) if name.startswith(POINT) else _mapped(descriptor)
        for name, descriptor in zip(names, descriptors, strict=True)
    }
    for descriptor in descriptors:
        os.close(descriptor)
    return files


def _seed(task: _Task, seed: int) -> None:
    """Give every global generator its seed: a fork would go on with the caller's, and repeat by chance."""
    import numpy as np  # noqa: PLC0415 (they are the caller's to load)
    import torch  # noqa: PLC0415

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(task.threads)


def _describe(error: BaseException, folder: str) -> list[Any]:
    """Return type, refused path, file, line and advice of an error of the recipe's. Its message may name a person."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(f"{folder}/")]
    if isinstance(error, SyntaxError) and (error.filename or "").startswith(f"{folder}/"):
        file, line = error.filename, error.lineno
    else:
        file, line = (lines[-1].filename, lines[-1].lineno) if lines else (None, None)
    path = os.fsdecode(error.filename) if isinstance(error, OSError) and error.filename else None
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno in FULL:  # of a disk, and no fault of the line
        kind = FULL[error.errno]
    advises = any(each.__name__ in ADVISING for each in type(error).__mro__)
    advice = [getattr(error, "what", ""), getattr(error, "hint", "")] if advises else None
    if isinstance(error, ModuleNotFoundError) and error.name:  # a name in code, and no datum
        kind = f"{kind} ({error.name})"
    return [kind, path, file and str(Path(file).relative_to(folder)), line, advice]


def _write(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
