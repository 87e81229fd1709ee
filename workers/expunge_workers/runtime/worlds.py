"""A worker's side of its template: sources are read and worlds are made there, and no row is held here."""

from __future__ import annotations

import errno
import math
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.numpy import load

from expunge_service.infra.python import PYTHON
from expunge_service.requests import Cause, Reason
from expunge_workers.runtime import drain, packages
from expunge_workers.runtime.failures import Attributed, PackagesReplaced
from expunge_workers.runtime.messages import receive, send
from expunge_workers.runtime.own_packages import IMPORTED_FROM
from expunge_workers.runtime.points import TakenPoints
from expunge_workers.runtime.ranks import NEEDED
from expunge_workers.runtime.template import COMPILER
from expunge_workers.runtime.walls import Probe, Wall, listed
from expunge_workers.runtime.work import add_cpu_seconds
from expunge_workers.runtime.world import FULL, IN_SCORE, Code
from unlearning.accounting.world import Enclosure
from unlearning.columns import Column, Texts
from unlearning.types import Progress, Refused, silent

Entered = TypeVar("Entered")
IDLE_SECONDS = 300.0
"""that a template waits for its next use: it holds some 400 MB, and takes seconds to start"""
LOOK_SECONDS = 0.5
"""between two looks whether this process is to stop, while a part trains"""
MONTH_SECONDS = 30 * 86_400.0
PRELOADED = (*COMPILER, "pandas", "sklearn.ensemble", "lightgbm", "xgboost")
"""what the template imports once for all worlds, where a recipe's code names it: each takes a second or so"""
NOT_PYTHON = ("SyntaxError", "IndentationError", "TabError")
"""errors of a file that cannot be called to look for them"""
BY_HAND = "Call recipe() yourself: it opens its sources then."
"""how the message of an error is seen, which stays in the world"""
DECLARING_SECONDS = 600.0
"""that the recipe's module may take to be imported"""
SETTLED = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""what sums and sets need to come out the same in every process"""


class Lost(RuntimeError):
    """The process ended before its task did, or failed in a way that may pass."""


class WorldRaised(Attributed):
    """The recipe's code raised an error in a world: its type, and the file and line that it came from."""

    reason, cause = Reason.RECIPE_FAILED, Cause.RECIPE_RAISED

    def __init__(self, error: str, path: str | None, file: str | None, line: int | None) -> None:
        self.words = [error, path, file, line, None]
        place = "" if file is None else f" at line {line} of {file}"
        kind, _, _ = error.partition(" ")  # a module that is missing is named beside it, and in no row
        facts = {"error": kind, "file": file or "", "line": line or 0}
        if path is None:
            what = f"The recipe raised {error}{place}."
            hint = "Correct that line." if error in NOT_PYTHON else BY_HAND
            if error.endswith(IN_SCORE):
                hint = f"Call score(rows) in recipe() before it returns. {BY_HAND}"
        else:
            name = Path(path).name  # it may name a person, and only the hint is not recorded
            what = f"The recipe opened a file{place}, and a recipe with rows opens nothing but what it declares."
            hint = (
                f"It is {path}. Where it holds people's rows: `rows=ul.table({name!r}, person=...)`. Where nobody's: "
                f"`words=ul.public({name!r}, sha256=...)`."
            )
        super().__init__(what, hint, facts)


@dataclass(frozen=True)
class Survey:
    """Who is in a source: k units that leave as one, see ``unlearning.rows.RowUnits``.

    Args:
        people: of each unit. ids: of its row, or empty. counts: (k,) int64, of its rows.
        digests: (k, 32) uint8, of its people, its id and what its rows hold.
        aside: (k,) bool, whether it is kept apart from training.
    """

    people: Column[tuple[str, ...]] = field(repr=False)
    ids: Texts = field(repr=False)
    digests: np.ndarray[Any, Any] = field(repr=False)
    counts: np.ndarray[Any, Any]
    aside: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.people)


@dataclass(frozen=True)
class SealedArray:
    """What a function gave for the blocks of one source: a sealed file in memory, and its SHA-256."""

    handle: int
    sha256: str


@dataclass(frozen=True)
class SealedRows:
    """The rows of one source for one part, with the files that they name: a sealed file in memory, and its SHA-256.

    Args:
        disk: where the rows are larger than what a worker holds, a file with their arrays; they are encrypted.
        blocks: where functions are mapped over them, a digest of each block.
        mapped: what each function gave, by its name.
    """

    handle: int
    sha256: str
    disk: int | None = None
    blocks: Sequence[str] = ()
    mapped: Mapping[str, SealedArray] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceReader:
    """The open sources of a recipe, in a process that ends with this."""

    surveys: Mapping[str, Survey]
    _line: Line = field(repr=False)

    @contextmanager
    def rows(self, units: Mapping[str, Sequence[int]], mapped: Collection[str] = ()) -> Iterator[dict[str, SealedRows]]:
        """Yield the rows of these units of each source, as if no other had ever been there. Raises Refused, Lost.

        ``mapped``: the sources whose blocks are digested, and can be asked for until the next rows are.
        """
        words = {"units": {name: [*numbers] for name, numbers in units.items()}, "mapped": [*mapped]}
        reply, handles = self._line.ask({"kind": "rows", **words})
        try:
            disks = dict(zip(reply["spooled"], handles[len(units) :], strict=True))
            yield {
                name: SealedRows(handle, reply["sha256"][name], disks.get(name), reply["blocks"].get(name, ()))
                for name, handle in zip(units, handles[: len(units)], strict=True)
            }
        finally:
            for handle in handles:
                os.close(handle)

    @contextmanager
    def blocks(self, source: str, numbers: Sequence[int]) -> Iterator[list[SealedRows]]:
        """Yield these blocks of the rows of a source that were asked for last, ``MOST_FILES`` at most."""
        reply, handles = self._line.ask({"kind": "blocks", "source": source, "numbers": [*numbers]})
        try:
            yield [SealedRows(*block) for block in zip(handles, reply["sha256"], strict=True)]
        finally:
            for handle in handles:
                os.close(handle)


@dataclass(frozen=True)
class PartOutcome:
    """What a part of a world answered, the seconds that it took by the CPU and by the clock, and its walls."""

    facts: Mapping[str, Any]
    data: bytes
    score: float | None
    cpu_seconds: float
    seconds: float
    walls: Enclosure


@dataclass(frozen=True)
class PartOrder:
    """What one part of a world is to do.

    Args:
        words: the job's order, as plain JSON.
        files: sealed files by name; ``aside``: those that score what it made; None: it is not scored.
        points: takes what it may go on from, should it be interrupted.
        key: that of what it makes, by which an engine knows it.
    """

    words: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    aside: Mapping[str, int] | None = None
    seed: int = 0
    points: TakenPoints | None = None
    key: str = ""


World = Callable[[PartOrder], PartOutcome]
"""carries out the job for one part"""


def _nothing() -> None:
    """Do nothing before the other end is killed."""


@dataclass
class Line:
    """A channel to a process of the template."""

    channel: socket.socket
    template: Template

    def ask(
        self,
        words: Mapping[str, Any],
        handles: Sequence[int] = (),
        progress: Progress = silent,
        leave: Callable[[], object] = _nothing,
    ) -> tuple[dict[str, Any], list[int]]:
        """Send words, and return the answer. Raises Refused, Lost, Drained, MemoryError, and as ``progress``.

        ``leave``: what is done before the other end is killed, for this process is to stop.
        """
        try:
            send(self.channel, words, handles)
        except (BrokenPipeError, ConnectionResetError):
            raise Lost("the process that reads the sources ended") from None
        return self.answer(progress, leave)

    def answer(
        self, progress: Progress = silent, leave: Callable[[], object] = _nothing
    ) -> tuple[dict[str, Any], list[int]]:
        while not select.select([self.channel], [], [], LOOK_SECONDS)[0]:
            if drain.asked():
                try:
                    leave()
                finally:
                    self.template.kill()
                raise drain.Drained
            try:
                progress(0.0)
            except BaseException:
                self.template.kill()
                raise
        with suppress(ConnectionResetError):
            reply, received = receive(self.channel)
            if reply is not None:
                require_results(reply)
                return reply, received
        if drain.asked():
            raise drain.Drained
        raise Lost("the process that reads the sources or trains ended")


def require_results(reply: Mapping[str, Any]) -> None:
    """Raise what a reply without results means (``reply_of``)."""
    match reply:
        case {"refused": [what, hint]} | {"raised": [_, _, _, _, [what, hint]]}:
            raise Refused(what, hint)
        case {"raised": ["MemoryError", *_]} | {"passing": _}:
            raise MemoryError("a process that reads rows or trains had too little memory")
        case {"raised": [error, *_]} if error in FULL.values():
            number = getattr(errno, error)
            raise OSError(number, os.strerror(number))
        case {"raised": [error, path, file, line, _]}:
            replaced = packages.replaced()
            if replaced:
                raise PackagesReplaced(replaced)
            raise WorldRaised(error, path, file, line)
        case {"late": True}:
            raise TimeoutError("the training did not end in time")
        case {"ended": why}:
            raise Lost(str(why))
        case {"broken": why}:
            raise RuntimeError(str(why))


def reply_of(error: Exception) -> dict[str, Any]:
    """Return the reply that means this error: ``require_results`` raises it again."""
    reply: dict[str, Any]
    match error:
        case WorldRaised():
            reply = {"raised": error.words}
        case Lost() | PackagesReplaced():
            reply = {"ended": str(error)}
        case Refused():
            reply = {"refused": [error.what, error.hint]}
        case MemoryError():
            reply = {"passing": str(error)}
        case TimeoutError():
            reply = {"late": True}
        case OSError() if error.errno in FULL:
            reply = {"raised": [FULL[error.errno], None, None, None, None]}
        case _:
            reply = {"broken": f"{type(error).__name__} while a part was trained"}  # its text may name a person
    return reply


class Template:
    """A process that has loaded the libraries and forks readers and worlds; it ends with this one.

    ``lines``: how many channels to what it has forked are open. ``used_at``: when it was last asked for, or one closed.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process, self._channel, self.owner = process, channel, os.getpid()
        self.lines, self.used_at = 0, time.monotonic()
        words, _ = receive(channel)
        if words is None:
            raise Lost("the template of worlds ended")
        self.probe = Probe(frozenset(map(Wall, words["standing"])), tuple(words["lacking"]))

    @classmethod
    def start(cls) -> Template:
        """Start one, in an environment without secrets."""
        channel, other = socket.socketpair()
        with other:
            process = subprocess.Popen(  # noqa: S603 (our own words)
                [*PYTHON, "-m", "expunge_workers.runtime.template", str(other.fileno())],
                env=process_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )
        return cls(process, channel)

    @contextmanager
    def line(self, order: Mapping[str, Any], handles: Sequence[int] = ()) -> Iterator[Line]:
        """Give an order, with files that it names, and yield the channel on which it is carried out."""
        drain.look()
        ours, theirs = socket.socketpair()
        with self._in_use(), ours:
            with theirs:
                try:
                    send(self._channel, order, [theirs.fileno(), *handles])
                except (BrokenPipeError, ConnectionResetError):
                    raise Lost("the template of worlds ended") from None
            yield Line(ours, self)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with _choosing:
            self.lines += 1
        try:
            yield
        finally:
            with _choosing:
                self.lines, self.used_at = self.lines - 1, time.monotonic()

    def kill(self) -> None:
        """End the template with all that it has forked."""
        self.process.kill()


_templates: list[Template] = []
_choosing = threading.Lock()
"""held while a template is chosen, or found idle: none that was just chosen ends"""


def template() -> Template:
    """Return this process's template; it is started at the first call, and again where it ended. Raises Drained."""
    drain.look()
    with _choosing:
        if not _templates or _templates[0].owner != os.getpid() or _templates[0].process.poll() is not None:
            _templates[:] = [Template.start()]
        _templates[0].used_at = time.monotonic()
        return _templates[0]


def end_idle_template(idle_seconds: float = IDLE_SECONDS) -> None:
    """End this process's template where it was not used for so long: torch and the other libraries leave with it."""
    with _choosing:
        idle = [
            started
            for started in _templates
            if started.owner == os.getpid() and not started.lines and time.monotonic() - started.used_at >= idle_seconds
        ]
        for started in idle:
            _templates.remove(started)
            started.kill()
            started.process.wait()


def kill_template() -> None:
    """Kill this process's template, where there is one: a training must not keep a process that is to end."""
    for started in _templates:
        if started.owner == os.getpid():
            started.kill()


_reading: list[ExitStack] = []


@contextmanager
def readers() -> Iterator[None]:
    """End at the end of the block every reader that was started in it."""
    with ExitStack() as stack:
        _reading.append(stack)
        try:
            yield
        finally:
            _reading.remove(stack)


def enter_with_readers(context: AbstractContextManager[Entered]) -> Entered:
    """Enter a context that ends with the innermost block of ``readers``."""
    return _reading[-1].enter_context(context)


def read_sources(
    sources: Mapping[str, Any],
    roots: Mapping[str, Path],
    *,
    databases: Mapping[str, str],
    salt: bytes,
    until: datetime | None,
    most: int,
    spool: Path,
    tables: Mapping[str, int],
) -> SourceReader:
    """Open the sources, with everybody in them, in a process that ends with the block of ``readers``.

    Args:
        sources: each as ``source_to_json`` gives it. roots: the folder beneath which each lies.
        databases: the address by setting. salt: by which people are kept apart.
        until: rows that came later, by their source's ``at=``, are left out.
        most: bytes that the rows of a part may take in memory, with the files that they name. spool: a folder on a disk
            for their arrays where they take more.
        tables: of sources that a function of the recipe reads, the sealed file of what it gave (``read_by_function``).

    Raises:
        Refused: a source cannot be read as it is declared. Lost: the process ended. MemoryError.
    """
    order = {
        "kind": "read",
        "sources": dict(sources),
        "roots": {name: str(root) for name, root in roots.items()},
        "databases": dict(databases),
        "salt": salt.hex(),
        "until": None if until is None else until.isoformat(),
        "most": most,
        "spool": str(spool),
        "tables": [*tables],
    }
    line = _reading[-1].enter_context(template().line(order, [*tables.values()]))
    people, handles = line.answer()
    try:
        surveys = [_survey(names, _read(handle)) for names, handle in zip(people.values(), handles, strict=True)]
    finally:
        for handle in handles:
            os.close(handle)
    return SourceReader(dict(zip(people, surveys, strict=True)), line)


def _survey(people: Sequence[Sequence[str]], data: bytes) -> Survey:
    """Return who is in a source, from the people's names and the tensors of its units."""
    of_units = load(data)
    return Survey(
        people=Column(torch.from_numpy(of_units["people"]), [*map(tuple, people)]),
        ids=Texts(of_units["ids"], of_units["ends"]),
        digests=of_units["digests"],
        counts=of_units["counts"],
        aside=of_units["aside"],
    )


@contextmanager
def make_world(
    job: str,
    code: Code,
    count: int,
    *,
    opened: Sequence[str] = (),
    closed: Sequence[str] = (),
    threads: int = 1,
    seconds: float = MONTH_SECONDS,
    progress: Progress = silent,
    of: Template | None = None,
) -> Iterator[World]:
    """Make a world that imports the code once, and yield what carries out the job for ``count`` parts.

    Args:
        opened: files that the world may read beside the libraries. closed: folders that it never sees.
        of: the template that forks it; None: this process's.

    Raises:
        Refused: the recipe's code raised. Lost: a process ended. TimeoutError. MemoryError.
    """
    with _open_world(
        of or template(), job, code, count, opened=opened, closed=closed, threads=threads, seconds=seconds
    ) as line:
        yield partial(_carry_out, line, progress)


@contextmanager
def _open_world(
    source: Template,
    job: str,
    code: Code,
    count: int,
    *,
    opened: Sequence[str],
    closed: Sequence[str],
    threads: int = 1,
    seconds: float = MONTH_SECONDS,
) -> Iterator[Line]:
    order = {
        "kind": "world",
        "job": job,
        "module": code.module,
        "files": {name: b64encode(text).decode() for name, text in code.files.items()},
        "libraries": [name for name in PRELOADED if _names(code, name.partition(".")[0])],
        "count": count,
        "standing": sorted(source.probe.standing),
        "opened": [*opened],
        "closed": [*closed],
        "threads": threads,
        "seconds": seconds,
    }
    with source.line(order) as line:
        yield line
        add_cpu_seconds(line.ask({})[0]["cpu"])


@contextmanager
def read_by_function(code: Code, function: str, path: Path, closed: Sequence[str]) -> Iterator[int]:
    """Yield a sealed file of everybody's rows, which a function of the recipe's module gives of a file or folder.

    It can open nothing else; ``closed``: folders beneath the path that it never sees.

    Raises:
        Refused: the recipe's code raised. Lost: a process ended. TimeoutError. MemoryError.
    """
    with _open_world(template(), "read", code, 1, opened=[str(path)], closed=closed) as line:
        order = PartOrder({"function": function, "path": str(path)}, seed=0)
        _, handles = _ask_part(line, drain.look_on, order)
    try:
        yield handles[0]
    finally:
        os.close(handles[0])


@contextmanager
def open_judge(threads: int, progress: Progress = silent) -> Iterator[World]:
    """Yield what computes with linear heads: a process without walls, for no code of a recipe is in it."""
    with template().line({"kind": "judge", "threads": threads}) as line:
        yield partial(_ask_judge, line, progress)


def _ask_judge(line: Line, progress: Progress, part: PartOrder) -> PartOutcome:
    outcome = _carry_out(line, progress, part)
    add_cpu_seconds(outcome.cpu_seconds)
    return outcome


def _names(code: Code, library: str) -> bool:
    return any(library.encode() in text for text in code.files.values())


def _ask_part(line: Line, progress: Progress, part: PartOrder) -> tuple[dict[str, Any], list[int]]:
    """Return what a part answered, and the sealed file of its data."""
    aside, points = part.aside or {}, part.points
    words = {"files": [*part.files], "aside": [*aside], "order": part.words, "seed": part.seed}
    words["scored"] = part.aside is not None
    handles = [*part.files.values(), *aside.values()]
    if points is None:
        return line.ask(words, handles, progress)

    def look(share: float) -> None:
        progress(share)
        points.look()

    return line.ask(words, handles, look, points.leave)


def _carry_out(line: Line, progress: Progress, part: PartOrder) -> PartOutcome:
    begun = time.perf_counter()
    reply, handles = _ask_part(line, progress, part)
    try:
        data = _read(handles[0])
    finally:
        for handle in handles:
            os.close(handle)
    score = (reply["score"] or {}).get("score")
    measured = isinstance(score, float) and math.isfinite(score)
    walls = line.template.probe.strength
    seconds = time.perf_counter() - begun
    return PartOutcome(reply["facts"], data, score if measured else None, reply["cpu"], seconds, walls)


def _read(handle: int) -> bytes:
    size = os.fstat(handle).st_size
    if not size:
        return b""
    with mmap.mmap(handle, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as memory:
        return memory[:]


def declare(code: Code, closed: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the recipe's parameters ask for: the code is imported behind the walls, without data.

    Raises Refused, Lost, TimeoutError.
    """
    with make_world("declare", code, 1, closed=closed, seconds=DECLARING_SECONDS) as world:
        return dict(world(PartOrder()).facts)


def require_walls_for(processes: int) -> None:
    """Raise Refused where this machine cannot wall off so many processes of one part."""
    lacking = sorted(NEEDED - template().probe.standing) if processes > 1 else []
    if lacking:
        what = f"The recipe trains by {processes} processes, and this worker cannot wall off: {', '.join(lacking)}."
        raise Refused(what, "Run `expunge doctor`: it says what to allow.")


def process_environment() -> dict[str, str]:
    """Return the environment of the template: without secrets, and with this process's packages."""
    environment = listed(os.environ) | SETTLED
    environment["HOME"] = str(Path.home())
    paths = (str(Path(path).absolute()) for path in sys.path if path)
    environment["PYTHONPATH"] = os.pathsep.join([*IMPORTED_FROM, *paths])
    return environment
