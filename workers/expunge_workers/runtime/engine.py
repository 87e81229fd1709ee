"""Parts that an engine trains: Expunge keeps the ledger, and a program on a machine of the engine's does the work.

A part goes out sealed (``PartFiles``), under its key as its name. Who asks for the same part again adopts what runs,
and what it ended in. Nothing comes back through the engine, so an engine that dies or repeats itself loses and doubles
nothing. The program ends where no worker asks for its part any more.
"""

from __future__ import annotations

import errno
import logging
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import torch

from expunge_service.infra.settings import SettingsError
from expunge_service.infra.stores import Damaged
from expunge_service.queue import Stale
from expunge_service.requests import Cause, Reason
from expunge_workers.runtime import drain
from expunge_workers.runtime.failures import Attributed
from expunge_workers.runtime.part_files import PartFiles, delete_unasked
from expunge_workers.runtime.rows_recipe import RowsRecipe
from expunge_workers.runtime.worlds import LOOK_SECONDS, Lost, PartOrder, PartOutcome, require_results
from expunge_workers.storage.environment import NAMED, Environment
from unlearning.accounting.world import Enclosure
from unlearning.types import Progress

log = logging.getLogger(__name__)
GROUP = "expunge.runners"
"""the entry points that name runners; the setting EXPUNGE_RUNNER chooses one"""
WAYS = (
    "Install its package where the workers run, as pip install expunge-ray, or unset it: workers train by themselves."
)
PLACE = "parts"
"""in the home folder: the files of parts, which the engine's machines reach under the same path"""
ASK_SECONDS = 10.0
"""between two notes that a worker asks for a part"""
UNASKED_SECONDS = 600.0
"""after which the program of a part that no worker asks for ends"""
FORGOTTEN_SECONDS = 86_400.0
"""after which its files are deleted: a worker that comes back until then goes on from its checkpoint"""
DIFFERS = "differs"
"""in a verdict: what a machine has otherwise than the worker"""


class EngineAway(OSError):
    """The engine does not answer, as a disk may: no request is the cause. What it was given may go on, and is adopted
    by whoever asks for it next.
    """

    def __init__(self, what: str) -> None:
        super().__init__(errno.ETIMEDOUT, what)


class EngineDiffers(Attributed):
    """A machine of the engine's would give other bits than the worker's. ``differences`` has at least one, such as
    ``torch 2.13.0, now 2.14.0``.
    """

    reason, cause = Reason.ENVIRONMENT_CHANGED, Cause.ENGINE_DIFFERS

    def __init__(self, differences: Sequence[str]) -> None:
        more = f"; and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
        what = f"A machine of the cluster differs from its worker: {'; '.join(differences[:NAMED])}{more}."
        hint = "Run the worker's image there, on machines of the same kind, with the same public files."
        super().__init__(what, hint, {"here": differences[0].partition(", now ")[0]})
        self.differences = [*differences]


@dataclass(frozen=True)
class PartJob:
    """What a runner is asked to run: the program for the part of this name at this place, under this key.

    ``processes``: of which each wants a card where the device is one.
    """

    place: str
    name: str
    key: bytes
    processes: int
    device: str


class Runner(Protocol):
    """Runs the program of parts (``start_program``) on machines of an engine, under their names.

    Every method raises EngineAway.
    """

    def submit(self, job: PartJob) -> None:
        """Start the program, or adopt what runs under the name. It is started again where its machine fails."""

    def look(self, name: str) -> str | None:
        """Return why no program of this name runs; None: it runs, or waits for a machine."""

    def cancel(self, name: str) -> None:
        """End the program, where there is one; when this returns no process of it runs."""


class Ledger(Protocol):
    """What the worker's database has of the parts that an engine trains, by their keys."""

    def key_of_files(self, key: str) -> bytes:
        """Return the key of a part's files: it goes with the next version."""

    def moved_on(self, key: str) -> None:
        """Note that a part has a new checkpoint: an attempt that reached it was not in vain."""

    def require_claim(self) -> None:
        """Raise Stale where the parts are another claim's by now."""


@dataclass(frozen=True)
class Engine:
    """Has parts trained by a runner. ``place``: where their files are, a folder or the URL of a prefix in a bucket."""

    runner: Runner
    place: str

    @contextmanager
    def world(
        self,
        recipe: RowsRecipe,
        ledger: Ledger,
        device: torch.device,
        threads: int,
        progress: Progress,
        *,
        may_resume: bool,
    ) -> Iterator[EngineWorld]:
        """Yield what has the recipe's parts trained, from their checkpoints on where they ``may_resume``; at its end
        nothing is left of them.

        Two things are left alone: what another claim asks for by now, and, after a planned stop or a failure that may
        pass, what was not collected: it goes on, or waits with its checkpoint, for the next attempt.
        """
        order = {
            "module": recipe.code.module,
            "code": {name: b64encode(text).decode() for name, text in recipe.code.files.items()},
            "public": [[str(recipe.roots[name] / path), sha256] for name, (path, sha256) in recipe.public.items()],
            "closed": [*recipe.closed],
            "threads": threads,
            "may_resume": may_resume,
            "environment": Environment.of(device, threads=str(threads)).to_json(),
        }
        world = EngineWorld(self, order, ledger, progress)
        try:
            yield world
        except (drain.Drained, Lost, EngineAway):
            world.begun.clear()
            raise
        except Stale:
            if drain.asked():  # the thread that gives back was quicker than the next look
                world.begun.clear()
            raise
        finally:
            for files in (*world.collected, *world.given_up()):
                self.end(files)
            self.delete_forgotten()

    def delete_forgotten(self) -> None:
        """Delete the files of parts that no worker has asked for in a day."""
        delete_unasked(self.place, FORGOTTEN_SECONDS)

    def end(self, files: PartFiles) -> None:
        """Leave no process and no file of a part. An engine that is away ends it by itself: nobody asks for it."""
        try:
            self.runner.cancel(files.name)
        except EngineAway as error:
            log.warning("a part is not cancelled: %s", error)
        files.remove()


@dataclass
class _Begun:
    """A part that was submitted: its files, what starts it or adopts it, and when it was last asked for by this worker,
    and its last checkpoint written, in seconds since 1970 UTC.
    """

    files: PartFiles
    start: Callable[[], None]
    checkpoint_at: float | None
    asked_at: float | None = None

    def submit(self) -> None:
        if not self.files.are_answered():
            self.files.ask()
            self.asked_at = self.files.asked_at()
            self.start()


@dataclass
class EngineWorld:
    """A world of which each part is trained on a machine of the engine's. Parts that were begun train at once."""

    engine: Engine
    order: Mapping[str, Any]
    ledger: Ledger
    progress: Progress
    begun: dict[str, _Begun] = field(default_factory=dict)
    """by the key of the part"""
    collected: list[PartFiles] = field(default_factory=list)
    _asked_at: float = float("-inf")

    def begin(self, part: PartOrder) -> None:
        """Submit a part, or adopt it, unless it was."""
        if part.key in self.begun:
            return
        key = self.ledger.key_of_files(part.key)
        files = PartFiles.at(self.engine.place, part.key, key)
        order = {**self.order, "words": part.words, "seed": part.seed}
        job = PartJob(self.engine.place, files.name, key, part.words["processes"], part.words["device"])

        def start() -> None:
            files.hand_over(order, part.files, part.aside)
            self.engine.runner.submit(job)

        self.begun[part.key] = _Begun(files, start, files.checkpoint_at())
        self.begun[part.key].submit()

    def __call__(self, part: PartOrder) -> PartOutcome:
        """Have a part trained, and collect what it made.

        Raises as ``require_results``, EngineDiffers, EngineAway, Stale, Drained, and as ``progress``.
        """
        self.begin(part)
        begun = self.begun[part.key]
        while (verdict := self._verdict(begun.files)) is None:
            why = self.engine.runner.look(begun.files.name)
            if why is not None and self._verdict(begun.files) is None:
                self._note_checkpoints()
                self.engine.runner.cancel(begun.files.name)
                raise Lost(why)
            self._keep_asking()
            drain.sleep(LOOK_SECONDS)
            self.progress(0.0)
        self.collected.append(self.begun.pop(part.key).files)
        words, data = verdict
        if DIFFERS in words:
            raise EngineDiffers(words[DIFFERS])
        require_results(words)
        # Nothing that stood there was seen here; of less than a new root nothing is said.
        walls = Enclosure.REPORTED if words["walls"] == Enclosure.NEW_ROOT else Enclosure.NONE
        return PartOutcome(words["facts"], data, words["score"], words["cpu"], words["seconds"], walls)

    def given_up(self) -> list[PartFiles]:
        """Return the files of the parts that were begun and not collected, and that no other claim asks for."""
        return [begun.files for begun in self.begun.values() if begun.files.asked_at() == begun.asked_at]

    def _verdict(self, files: PartFiles) -> tuple[dict[str, Any], bytes] | None:
        """Return what the program answered. Raises Lost where another than the program wrote it."""
        try:
            return files.verdict()
        except Damaged:
            self.engine.end(files)
            raise Lost("what the engine's machine answered was changed on the way") from None

    def _keep_asking(self) -> None:
        """Ask, from time to time, for all parts that were begun. Raises Stale."""
        if time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._asked_at = time.monotonic()
            self.ledger.require_claim()
            self._note_checkpoints()
            for begun in self.begun.values():
                begun.submit()

    def _note_checkpoints(self) -> None:
        for key, begun in self.begun.items():
            at = begun.files.checkpoint_at()
            if at != begun.checkpoint_at:
                begun.checkpoint_at = at
                self.ledger.moved_on(key)


@lru_cache(maxsize=1)
def engine_of(runner: str, home: Path) -> Engine | None:
    """Return the engine that the setting EXPUNGE_RUNNER names; None: worlds of this machine. Raises SettingsError.

    ``runner``: such as ``ray``, or with the place of the files, ``ray@/srv/parts`` and ``ray@s3://bucket/parts``.
    """
    name, _, place = runner.partition("@")
    if not name:
        return None
    installed = {each.name: each for each in entry_points(group=GROUP)}
    if name not in installed:
        known = ", ".join(sorted(installed)) or "none is installed here"
        raise SettingsError(f"EXPUNGE_RUNNER is {runner!r}, which names no runner ({known}). {WAYS}")
    try:
        kind = installed[name].load()
    except ImportError as error:
        raise SettingsError(f"EXPUNGE_RUNNER is {runner!r}, which needs {error.name}. {WAYS}") from None
    return Engine(kind(), place or str(home / PLACE))
