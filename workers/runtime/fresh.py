"""Trainings in fresh processes: no training finds what a recipe's code kept in an earlier one.

A worker starts one server (``fresh_child``), which has loaded the libraries and no recipe. For each training, and each
phase and slice of one, the server forks a process that trains and ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

import expunge
from expunge.service.infra.python import PYTHON
from expunge.service.infra.settings import SECRETS, Settings
from expunge.service.infra.tenants import recipes_of
from expunge.service.queue import ADVICE, hint_of
from expunge.workers.runtime import drain, packages
from expunge.workers.runtime.confined import COMPILED, listed
from expunge.workers.runtime.failures import PackagesReplaced
from expunge.workers.runtime.fresh_child import STOP, Assignment, read, write
from expunge.workers.runtime.work import add_cpu_seconds
from unlearning.model.user_code.own_training import Fitted
from unlearning.types import Examples, Progress, Refused

FOLDER = "expunge-training-"
YOUNG_SECONDS = 60
"""a folder that is younger may be that of another worker, which has not locked it yet"""
ROOT = Path(expunge.__file__).resolve().parents[1]
SETTLED = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""what sums and sets need to come out the same in every process"""

WALLS = ((False, False), (False, True), (True, True))
"""whether a fresh process is left the network, and the folders that lead out of a network namespace: the least first"""
VARIABLES = "That process has no variables of the environment but those that EXPUNGE_RECIPE_VARIABLES lists."


COMPILE = (
    'Call torch.compile(model, backend="aot_eager"), which starts none, or leave torch.compile out. What is trained is '
    "the same."
)


class Doubtful(Refused):
    """A refusal that may come from too few samples: batches that are dropped, a class that is missing."""


class Unloadable(Refused):
    """The recipe could not be run in a fresh process."""


class Lost(RuntimeError):
    """The process ended before its training did, or failed in a way that may pass."""


@dataclass
class Seen:
    """What all trainings of a model in fresh processes had in common, so far.

    ``deterministic``: each used deterministic algorithms alone. ``sealed``: the kernel let each write to its own folder
    alone. ``held_out``: why the holdout could not be overwritten; None: it was, each time.
    """

    deterministic: bool = True
    sealed: bool = True
    held_out: str | None = None

    def add(self, more: Mapping[str, Any]) -> None:
        """Add what another training, or those of another worker, had."""
        self.deterministic &= more["deterministic"]
        self.sealed &= more["sealed"]
        self.held_out = self.held_out or more["held_out"]


@dataclass(frozen=True)
class Recipes:
    """Which recipe is trained where; ``settings_digest`` is that of the recipe's settings."""

    settings: Settings
    tenant_id: str
    name: str
    digest: str
    settings_digest: str
    device: str


@dataclass
class FreshProcesses:
    """Carries out parts of a training, each in its own process. ``seen`` is added to."""

    recipe: Recipes
    dtype: str
    libraries: tuple[str, ...] = ()
    """packages that the model's bytes depend on: the server loads those that it knows, once for all processes"""
    seen: Seen = field(default_factory=Seen)
    walls: int = 0
    """which of ``WALLS`` the recipe is trained behind, as far as is known"""

    def __call__(self, part: object, examples: Examples, start: Fitted | None, progress: Progress) -> Fitted:
        """Carry out a part, in a folder that is thrown away.

        Raises:
            Refused: the recipe's code did what it may not do, raised, or cannot be run in a fresh process.
            Lost: the process was killed, or failed in a way that may pass.
        """
        with temporary_folder() as folder:
            fitted, verdict = self.carried_out(part, examples, start, progress, folder)
        self.seen.add(verdict)
        return fitted

    def announce(self, _chains: Sequence[Sequence[tuple[object, Examples]]]) -> None:
        """Each part is carried out when it is asked for."""

    def carried_out(
        self,
        part: object,
        examples: Examples,
        start: Fitted | None,
        progress: Progress,
        folder: Path,
        *,
        kept: Sequence[int] | None = None,
        seconds: float | None = None,
    ) -> tuple[Fitted, dict[str, Any]]:
        """Carry out a part in this folder; return what it left, and the verdict.

        A recipe that needs the network to load gets it until its training begins; one that reads files in the folders
        that lead out of a network namespace gets those. ``kept``: as in ``Assignment``.

        Raises:
            TimeoutError: it did not end within ``seconds``.
            Refused, Lost: as ``__call__``; Doubtful where the training raised, or left what is no model.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        before = frozenset(folder.iterdir())
        for walls in range(self.walls, len(WALLS)):
            order = self._order(part, folder, walls, kept)
            tensors, words = _handed(part, examples, start)
            given = {"order": asdict(order), **words}
            left, verdict = server().ask(tensors, given, progress, deadline, self.libraries)
            if not verdict.keys() & {"unloadable", "hidden"}:
                self.walls = walls
                break
            _remove(frozenset(folder.iterdir()) - before)
        _judge(verdict)
        rest = {name.removeprefix("."): value for name, value in left.items() if name.startswith(".")}
        return Fitted(left["weights"].to(examples.positions.device), rest, verdict["left"]), verdict

    def _order(self, part: object, folder: Path, walls: int, kept: Sequence[int] | None) -> Assignment:
        recipe, settings = self.recipe, self.recipe.settings
        secrets = (getattr(settings, name) for name in SECRETS)
        named = [each.strip() for each in settings.recipe_variables.split(",")]
        plain = {each.name: getattr(part, each.name) for each in fields(part)}  # type: ignore[arg-type]
        return Assignment(
            recipes=str(recipes_of(settings.recipes, recipe.tenant_id).absolute()),
            name=recipe.name,
            digest=recipe.digest,
            settings=recipe.settings_digest,
            device=recipe.device,
            dtype=self.dtype,
            part=(type(part).__name__, {name: value for name, value in plain.items() if not isinstance(value, Tensor)}),
            folder=str(folder),
            closed=tuple(str(each.resolve()) for each in (*settings.folders, *secrets)),
            variables={name: os.environ[name] for name in named if name in os.environ},
            network=WALLS[walls][0],
            folders=WALLS[walls][1],
            kept=kept,
        )


def _remove(paths: Iterable[Path]) -> None:
    """Remove what a try left that comes to nothing: the next one must not find it."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _handed(part: object, examples: Examples, start: Fitted | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the samples, and what the part starts from. Samples that are not held are read by the process itself."""
    people, subjects = examples.people.compact(), examples.subjects.compact()
    tensors = {"positions": examples.positions, "people": people.codes, "subjects": subjects.codes}
    tensors |= {"inputs": examples.inputs, "targets": examples.targets} if examples.held else {"index": examples.index}
    tensors |= {f"part.{name}": value for name, value in vars(part).items() if isinstance(value, Tensor)}
    words: dict[str, Any] = {"people": [*people.values], "subjects": [*subjects.values]}
    if start is not None:
        tensors |= {"start": start.weights, **{f"start.{name}": value for name, value in start.tensors.items()}}
        words["start"] = start.facts
    return tensors, words


_ENDED_BY_SIGNAL = {
    signal.SIGKILL: "killed: there may have been too little memory",
    signal.SIGTERM: "asked to end, by another than its worker",
}


def _judge(verdict: Mapping[str, Any]) -> None:
    """Raise what a verdict without results means."""
    replaced = packages.replaced() if verdict.keys() & {"refused", "unloadable"} else []
    if replaced:
        raise PackagesReplaced(replaced)
    match verdict:
        case {"attempt": [what, place, _]} if what == COMPILED:
            raise Refused(f"train {what}{place}; it may depend on run alone.", COMPILE)
        case {"attempt": [what, place, value]}:
            raise Refused(f"train {what}{place}; it may depend on run alone.", hint_of(PermissionError(value)))
        case {"refused": [what, hint]}:
            raise Doubtful(what, hint)
        case {"unloadable": [what, hint]}:
            raise Unloadable(f"The recipe could not be run in a fresh process. {what}", f"{hint or ADVICE} {VARIABLES}")
        case {"passing": why}:
            raise Lost(why)
        case {"ended": status} if -status in _ENDED_BY_SIGNAL:
            raise Lost(f"the process of a training was {_ENDED_BY_SIGNAL[signal.Signals(-status)]}")
        case {"ended": status}:
            raise Doubtful(f"train ended its process (status {status}).", ADVICE)
        case {"broken": why}:
            raise RuntimeError(f"a fresh process itself failed:\n{why}")


def process_environment() -> dict[str, str]:
    """Return the environment of a process that runs a recipe's code: without secrets, and with this one's packages."""
    environment = listed(os.environ) | SETTLED
    environment["HOME"] = str(Path.home())
    paths = (str(Path(each).absolute()) for each in sys.path if each)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *paths])
    return environment


class Server:
    """A server of fresh processes, which ends with this process, and the worker's end of the channel to it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process, self._channel = process, channel
        self.owner = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def start(cls) -> Server:
        """Start one, in an environment without secrets."""
        channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            process = subprocess.Popen(  # noqa: S603 (our own words)
                [*PYTHON, "-m", "expunge.workers.runtime.fresh_child", str(other.fileno())],
                env=process_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )
        return cls(process, channel)

    def ask(
        self,
        tensors: Mapping[str, Tensor],
        words: Mapping[str, Any],
        progress: Progress,
        deadline: float | None,
        libraries: Sequence[str] = (),
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Have an order carried out; return tensors and words of its answer.

        Raises TimeoutError, Drained, Lost, and as ``progress``.

        An answer that lacks everything else says how the process ended.
        """
        with self._lock, _file() as given, _file() as answer:
            write(given, tensors, words)
            drain.look()
            socket.send_fds(self._channel, [json.dumps(libraries).encode()], [given, answer])
            try:
                status = self._end(progress, deadline)
            except BaseException:
                if drain.asked():  # it is not waited for, and what it failed with does not count
                    self.kill()
                    raise drain.Drained from None
                self._channel.send(STOP)
                self._end(lambda _: None, None)
                raise
            return read(answer) if os.fstat(answer).st_size else ({}, {"ended": status})

    def kill(self) -> None:
        """End the server with all that it has forked, and whoever waits for an answer."""
        self.process.kill()

    def _end(self, progress: Progress, deadline: float | None) -> int:
        """Wait until the process has ended, and return how."""
        while True:
            self._channel.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            message = self._channel.recv(1024)
            if not message:
                raise Lost("the server of fresh processes ended")
            match json.loads(message):
                case {"progress": share}:
                    progress(share)
                case {"ended": status, "cpu_seconds": cpu_seconds}:
                    add_cpu_seconds(cpu_seconds)
                    return int(status)


_servers: list[Server] = []


def server() -> Server:
    """Return this process's server; it is started at the first call, and again where it ended. Raises Drained."""
    drain.look()
    if not _servers or _servers[0].owner != os.getpid() or _servers[0].process.poll() is not None:
        _servers[:] = [Server.start()]
    return _servers[0]


def kill_server() -> None:
    """Kill this process's server, where there is one: a training that lasts must not keep a process that is to end."""
    for each in _servers:
        if each.owner == os.getpid():
            each.kill()


@contextmanager
def _file() -> Iterator[int]:
    """Open an empty file in memory, which no folder shows."""
    handle = os.memfd_create("expunge")
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for trainings, and remove those that dead workers left: they may hold samples."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with suppress(OSError), _locked(left):
            if time.time() - left.stat().st_mtime > YOUNG_SECONDS:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True) as name, _locked(Path(name)):
        yield Path(name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, which ends with this process. Raises OSError where another process holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
