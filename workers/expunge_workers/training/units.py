"""Parts of a preparation that any worker may compute: numbered units, each with one owner; their results are merged.

Every unit starts from the same sealed state. It lies in the private store until version 1 is published, and a note in
the generation's manifest names it. A preparation of a lost worker repeats neither its training nor a unit that is
done. A notification only says that there is work; the table says what it is.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.infra.broker.notify import notify, notify_many
from expunge_service.infra.db import now
from expunge_service.infra.tables import CalibrationOrder, Generation, Model, WorkUnit
from expunge_service.queue import (
    BUILT,
    POLL_SECONDS,
    Job,
    Preparation,
    Replan,
    WorkUnits,
    deletions_wait,
    extend_manifest,
    fence,
)
from expunge_workers.runtime import drain
from expunge_workers.runtime.model import OpenModel
from expunge_workers.runtime.process import Process
from expunge_workers.storage import manifest, private_state
from expunge_workers.storage.environment import ENVIRONMENT, Environment
from unlearning.types import Examples, Progress, Refused, State

WORTH_SECONDS = 2.0
"""of training, below which an update asks no other worker: opening the model takes it as long"""


def pieces_of(process: Process, record: type[WorkUnit | CalibrationOrder], generation_id: int) -> WorkUnits:
    return WorkUnits(process.storage.database, process.owner, process.limits.lease_seconds, record, generation_id)


@dataclass(frozen=True)
class Units(ABC):
    """All units of one kind of one generation, and what they start from."""

    process: Process
    generation_id: int
    model_id: str
    bench: OpenModel
    examples: Examples
    state: State
    digest: str
    """of the sealed state"""
    work: list[float] = field(default_factory=list)
    """seconds of work of each unit, once ``finished`` was called, as far as the units note it"""

    NOTE: ClassVar[str]
    """the name of the note in the manifest"""
    RECORD: ClassVar[type[WorkUnit | CalibrationOrder]]

    @property
    def pieces(self) -> WorkUnits:
        """Return the rows of the units."""
        return pieces_of(self.process, self.RECORD, self.generation_id)

    @abstractmethod
    def compute(self, number: int, progress: Progress) -> None:
        """Compute one unit that this process owns, and store its result if it owns it still."""

    @classmethod
    def place(cls, session: Session, generation: Generation) -> str:  # noqa: ARG003 (of those that start elsewhere)
        """Return the place that the state which the units start from is sealed for."""
        return f"units/{generation.id}/{cls.NOTE}"

    @classmethod
    def lay_out(cls, process: Process, job: Job, kept: State, numbers: Iterable[int], more: Mapping[str, Any]) -> str:
        """Seal what the units start from, note it with ``more``, add the units; return the state's digest.

        Raises Stale.
        """
        storage = process.storage
        with storage.database.read() as session:
            place = cls.place(session, session.get_one(Generation, job.generation_id))
        digest = private_state.keep(storage.private, storage.sealer, place, kept, {}).digest
        with storage.database.write() as session:
            note = {**more, "state": digest, "policy": job.policy.to_json()}
            extend_manifest(session, job, {cls.NOTE: note})
            pieces_of(process, cls.RECORD, job.generation_id).lay_out(session, numbers)
        return digest

    @classmethod
    def note_of(cls, generation: Generation) -> dict[str, Any] | None:
        """Return what ``lay_out`` noted while the generation is being built; None where there is none."""
        found = (generation.manifest or {}).get(cls.NOTE)
        return found if isinstance(found, dict) and generation.status in BUILT else None

    @classmethod
    @abstractmethod
    def opened(cls, process: Process, generation: Generation, recipe: str) -> Self | None:
        """Open what was laid out; None where it is gone, or the recipe or its surroundings changed. Raises Refused."""

    @classmethod
    def forget(cls, process: Process, generation_id: int) -> None:
        """Delete the units, the note and the sealed state."""
        pieces_of(process, cls.RECORD, generation_id).clear()
        cls.drop_state(process, generation_id)

    @classmethod
    def drop_state(cls, process: Process, generation_id: int) -> None:
        """Delete the note and the sealed state. The scheduler deletes a state that a crash leaves."""
        with process.storage.database.write() as session:
            generation = session.get_one(Generation, generation_id)
            kept = dict(generation.manifest or {})
            note = kept.pop(cls.NOTE, None)
            if note is not None:
                generation.manifest = kept
        if note is not None:
            process.storage.private.delete(note["state"])

    def compute_all(self, job: Job, progress: Progress) -> bool:
        """Compute every unit, together with the workers that help.

        False where it is a preparation, and gives way to deletions between two.

        Raises Stale, Drained, Replan.
        """
        process, pieces = self.process, self.pieces
        count = pieces.count()
        notify_many(process.storage.database, process.notifier, self.model_id, count - pieces.done() - 1)
        while (done := pieces.done()) < count:
            drain.look()
            progress(done / count)
            with process.storage.database.write() as session:
                fence(session, job.lease)
                number = pieces.take(session)
            if number is None and pieces.count() < count:  # another claim of this generation has cleared them
                raise Replan("the work units are gone", train_again=True)
            if number is None:
                time.sleep(POLL_SECONDS)
            else:
                self.attempt(number, partial(_within, progress, done, count))
            prepares = isinstance(job, Preparation)
            if prepares and pieces.done() < count and deletions_wait(process.storage.database, process.serves):
                return False
        return True

    @abstractmethod
    def finished(self, progress: Progress) -> Any:
        """Return what all units together give, once they are done."""

    def attempt(self, number: int, progress: Progress) -> None:
        """Notify other workers and compute one unit; give it back where that fails. Raises Drained."""
        notify(self.process.storage.database, self.process.notifier, [self.model_id])
        try:
            drain.look()
            self.compute(number, progress)
        except BaseException:
            self.pieces.let_go(number)
            raise

    def mark_done(self, session: Session, number: int) -> Any:
        """Mark a unit of ours as done and return its row; None if it is not ours. Progress resets the attempts."""
        row = self.pieces.ours(session, number)
        if row is None:
            return None
        row.done_at = now(session)
        generation = session.get_one(Generation, self.generation_id)
        generation.attempts = min(generation.attempts, 1)
        return row


def assist(process: Process, model_id: str, kinds: Iterable[type[Units]]) -> bool:
    """Compute one free unit of what another worker builds or updates; return False where there is none."""
    with process.storage.database.read() as session:
        model = session.get(Model, model_id)
        generations = session.scalars(
            select(Generation).where(Generation.model_id == model_id, Generation.status.in_((*BUILT, "live")))
        ).all()
    if model is None or not process.serves.takes(model):
        return False
    for kind, generation in ((kind, generation) for generation in generations for kind in kinds):
        if kind.note_of(generation) is None or not pieces_of(process, kind.RECORD, generation.id).any_free():
            continue
        try:
            units = kind.opened(process, generation, model.recipe)
        except Refused:  # the worker that builds the generation meets the same, and says so
            return False
        if units is None:
            return False
        with process.storage.database.write() as session:
            number = units.pieces.take(session)
            latest = session.get_one(Generation, generation.id, populate_existing=True)
            anew = kind.note_of(latest) != kind.note_of(generation)
        if number is not None and anew:  # the unit starts from something else than what was opened
            units.pieces.let_go(number)
            return False
        if number is not None:
            units.attempt(number, drain.look_on)
            notify(process.storage.database, process.notifier, [model_id])
        return number is not None
    return False


def _within(progress: Progress, done: int, count: int, share: float) -> None:
    progress((done + share) / count)


def in_its_environment(bench: OpenModel, note: Mapping[str, Any], frozen: Mapping[str, Any]) -> bool:
    """Return whether this process may compute units of the one that laid them out.

    Parts of an exact training have one environment; what else is computed here has a trajectory that can be replayed.
    """
    problem = bench.problem
    if not bench.method.exact:
        return manifest.replayable(frozen["libraries"], problem.device)
    theirs = note.get(ENVIRONMENT) or frozen.get(ENVIRONMENT, {}).get("digest")
    return bool(theirs == Environment.of(problem.device).digest)
