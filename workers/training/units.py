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

from expunge.service.infra.broker.notify import notify, notify_many
from expunge.service.infra.db import now
from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Damaged
from expunge.service.infra.tables import Generation, Model, WorkUnit
from expunge.service.infra.tenants import recipes_of
from expunge.service.models import drop_vectors, write_vectors
from expunge.service.queue import (
    BUILT,
    POLL_SECONDS,
    Job,
    Piece,
    Preparation,
    Replan,
    WorkUnits,
    deletions_wait,
    extend_manifest,
    fence,
)
from expunge.workers.guarantee.terms import guarantee_of
from expunge.workers.runtime import drain, recipes
from expunge.workers.runtime.model import OpenModel, build
from expunge.workers.runtime.process import Process
from expunge.workers.storage import manifest, private_state
from expunge.workers.storage.checkpoint_format import Malformed
from expunge.workers.storage.environment import ENVIRONMENT, Environment
from unlearning.accounting.policy import Policy
from unlearning.model.method import Divisible, Method
from unlearning.types import Examples, Learned, Progress, Refused, State, Trajectory, VectorSource

WORTH_SECONDS = 2.0
"""of training, below which an update asks no other worker: opening the model takes it as long"""
LEAST_HOLDERS = 64
"""Fewer people than this make no unit: following the trajectory costs each unit as much as a few vectors."""


def pieces_of(process: Process, record: type[Piece], generation_id: int) -> WorkUnits:
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
    RECORD: ClassVar[type[Piece]]

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
    def gone(cls, session: Session, generation: Generation) -> frozenset[int]:  # noqa: ARG003 (of those that know)
        """Return the positions of the samples that the units are computed without."""
        return frozenset()

    @classmethod
    def opened(cls, process: Process, generation: Generation, recipe: str) -> Self | None:
        """Open what was laid out; None where it is gone, or the recipe or its surroundings changed. Raises Refused."""
        note, frozen, storage = cls.note_of(generation), generation.manifest or {}, process.storage
        if note is None:
            return None
        policy = Policy.from_json(note["policy"])
        bench = build(process.settings, generation.tenant_id, recipe, policy)
        bench = bench.under(guarantee_of(policy, bench.problem, bench.method))
        device = bench.problem.device
        same = (bench.digest, bench.settings) == (frozen["recipe_digest"], frozen["settings_digest"])
        if not same or not in_its_environment(bench, note, frozen):
            return None
        try:
            with storage.database.read() as session:
                place = cls.place(session, generation)
            made = private_state.load(storage.private, storage.sealer, place, note["state"], device)
            samples = recipes.load(recipes_of(process.settings.recipes, generation.tenant_id), recipe).recipe.samples
            with storage.database.read() as session:
                places, gone = manifest.places(session, generation.id), cls.gone(session, generation)
            now = manifest.given(storage.pepper, generation.tenant_id, samples)
            most = process.settings.sample_bytes
            found = manifest.found_again(samples, now, places, gone, device, most=most)
        except (Damaged, Malformed):
            return None
        if isinstance(found, manifest.Changed):
            return None
        return cls(process, generation.id, generation.model_id, bench, found.examples, made, note["state"])

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


class VectorUnits(Units):
    """The vectors of some people each, all computed along the same trajectory."""

    NOTE = "trained"
    RECORD = WorkUnit

    @classmethod
    def opened(cls, process: Process, generation: Generation, recipe: str) -> Self | None:
        """Open what was laid out; None where it cannot be used any more. Raises Refused."""
        found = super().opened(process, generation, recipe)
        return None if found is None or divisible(found.bench, found.learned) is None else found

    @property
    def learned(self) -> Learned:
        """Return the training that the units follow."""
        return Learned(self.state.weights, Trajectory.from_tensors(self.state.tensors))

    @property
    def method(self) -> Divisible:
        """Return the method, which divides on this training."""
        found = divisible(self.bench, self.learned)
        if found is None:
            raise ValueError("the method's preparation cannot be shared out")
        return found

    def holders_of(self, number: int, count: int) -> list[str]:
        """Return the holders of one unit of ``count``."""
        names = self.method.holders(self.bench.problem, self.examples)
        return names[len(names) * number // count : len(names) * (number + 1) // count]

    def compute(self, number: int, progress: Progress) -> None:
        """Compute the unit's vectors and write them in place of what a lost worker wrote."""
        crash_point("work-unit-inside")
        holders = self.holders_of(number, self.pieces.count())
        vectors = self.method.part(self.bench.problem, self.examples, self.learned, holders, progress)
        storage, pieces = self.process.storage, self.pieces
        with storage.database.write() as session:
            if pieces.ours(session, number) is None:
                return
            left = drop_vectors(session, self.generation_id, vectors)
        if left:
            storage.keys.destroy(left)
        for rows in private_state.seal_vectors(storage.keys, self.generation_id, vectors):
            with storage.database.write() as session:
                if pieces.ours(session, number) is None:
                    return
                write_vectors(session, rows)
            crash_point("work-unit-inside-rows")
        with storage.database.write() as session:
            self.mark_done(session, number)
        crash_point("work-unit-after")

    def finished(self, progress: Progress) -> tuple[State, VectorSource]:
        """Return the method's state, and where the vectors of all units are read from."""
        storage, problem = self.process.storage, self.bench.problem
        numbers, device = self.method.length(problem), problem.device
        vectors = private_state.VectorStore(storage.database, storage.keys, self.generation_id, numbers, device)
        return self.method.complete(problem, self.examples, self.learned, vectors, progress), vectors


def in_its_environment(bench: OpenModel, note: Mapping[str, Any], frozen: Mapping[str, Any]) -> bool:
    """Return whether this process may compute units of the one that laid them out.

    Parts of an exact training have one environment; what else is computed here has a trajectory that can be replayed.
    """
    problem = bench.problem
    if not bench.method.exact:
        return manifest.replayable(frozen["libraries"], problem.device)
    theirs = note.get(ENVIRONMENT) or frozen.get(ENVIRONMENT, {}).get("digest")
    return bool(theirs == Environment.of(problem.device, problem.artefact).digest)


def divisible(bench: OpenModel, learned: Learned) -> Divisible | None:
    """Return the method where its preparation can be shared out on this training; None elsewhere."""
    method: Method = bench.method
    return method if isinstance(method, Divisible) and method.divides(bench.problem, learned) else None


def wanted(process: Process, holders: int) -> int:
    """Return how many units the limit and the number of vectors make; fewer than two are not worth it."""
    return min(process.limits.work_units, holders // LEAST_HOLDERS)
