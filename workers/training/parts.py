"""Parts of a training that know nothing of each other: each is a work unit, and lies sealed in the private store.

A first training has them, and an update that repeats several.

The bits of a part follow from the start, the samples and its number, so it does not matter which worker trains it.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, replace
from typing import Any, Self, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Damaged
from expunge.service.infra.tables import Generation, Model, Version, WorkUnit
from expunge.service.models import measured_work
from expunge.service.queue import Deletions, Replan, extend_manifest, forgotten, others_take
from expunge.workers.runtime import drain
from expunge.workers.runtime.model import OpenModel
from expunge.workers.runtime.process import Process
from expunge.workers.runtime.work import cpu_seconds, work_of
from expunge.workers.storage import private_state
from expunge.workers.storage.environment import ENVIRONMENT, Environment
from expunge.workers.training.keyed_parts import forget_by_keys
from expunge.workers.training.units import WORTH_SECONDS, Units, pieces_of
from unlearning.model.method import InParts
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Learned,
    Progress,
    State,
    Vectors,
    VectorSource,
    silent,
)

SEEN = "seen"
"""among the facts of a sealed part: what its trainings in fresh processes had in common"""
WORK = "work_seconds"
"""among them too: the seconds of work that it took"""


class PartUnits(Units):
    """The parts of a generation's first training."""

    NOTE = "in_parts"
    RECORD = WorkUnit

    @classmethod
    def opened(cls, process: Process, generation: Generation, recipe: str) -> Self | None:
        found = super().opened(process, generation, recipe)
        return None if found is None or not isinstance(found.bench.method, InParts) else found

    @property
    def learned(self) -> Learned:
        """Return what a method that trains by itself is given."""
        return Learned(self.bench.problem.initial())

    @property
    def method(self) -> InParts:
        if not isinstance(self.bench.method, InParts):
            raise TypeError("the method does not train in parts")
        return self.bench.method

    def compute(self, number: int, progress: Progress) -> None:
        """Train one part and seal it. Of two workers the one that the row still names counts."""
        crash_point("work-unit-inside")
        storage, fresh = self.process.storage, self.bench.fresh
        start, cpu_start = time.perf_counter(), cpu_seconds()
        made = self.method.part(self.bench.problem, self.examples, self.state, number, progress)
        device = str(self.bench.problem.device)
        work = work_of(time.perf_counter() - start, cpu_seconds() - cpu_start, device)
        noted = replace(made, facts={**made.facts, SEEN: None if fresh is None else asdict(fresh.seen), WORK: work})
        kept = private_state.keep(storage.private, storage.sealer, self._part_place(number), noted, {})
        with storage.database.write() as session:
            row = self.mark_done(session, number)
            if row is not None:
                row.result = kept.digest
        if row is None:
            storage.private.delete(kept.digest)
        crash_point("work-unit-after")

    def finished(self, progress: Progress) -> tuple[State, VectorSource]:
        """Return what ``prepare`` returns. Raises Replan where the file of a part is gone."""
        parts = {number: self._part(number, digest) for number, digest in self._results().items()}
        made = self.method.whole(self.bench.problem, self.examples, self.state, parts, progress)
        return made, Vectors({})

    @classmethod
    def forget(cls, process: Process, generation_id: int) -> None:
        with process.storage.database.read() as session:
            query = select(WorkUnit.result).where(WorkUnit.generation_id == generation_id, WorkUnit.result.is_not(None))
            results = session.scalars(query).all()
        super().forget(process, generation_id)
        for digest in results:
            process.storage.private.delete(str(digest))

    def _results(self) -> dict[int, str]:
        query = select(WorkUnit.number, WorkUnit.result).where(WorkUnit.generation_id == self.generation_id)
        with self.process.storage.database.read() as session:
            return {number: str(result) for number, result in session.execute(query)}

    def _part_place(self, number: int) -> str:
        """Return the place that a part is sealed for: a part of another start, or of other samples, does not open."""
        positions = hashlib.sha256(self.examples.positions.cpu().numpy().tobytes()).hexdigest()
        return f"part/{self.generation_id}/{self.digest}/{number}/{positions}"

    def _part(self, number: int, digest: str) -> State:
        storage = self.process.storage
        try:
            place, device = self._part_place(number), self.bench.problem.device
            part = private_state.load(storage.private, storage.sealer, place, digest, device)
        except Damaged:
            raise Replan("the file of a trained part is gone", train_again=True) from None
        self.work.append(float(cast("float", part.facts.get(WORK, 0.0))))
        seen, fresh = part.facts[SEEN], self.bench.fresh
        if fresh is not None and isinstance(seen, dict):
            fresh.seen.add(seen)
        return part


class LeavingUnits(PartUnits):
    """The parts of an update, without the samples that it forgets. They start from the state of the current version."""

    NOTE = "leaving"

    @classmethod
    def note_of(cls, generation: Generation) -> dict[str, Any] | None:
        found = (generation.manifest or {}).get(cls.NOTE)
        return found if isinstance(found, dict) and generation.status == "live" else None

    @classmethod
    def place(cls, session: Session, generation: Generation) -> str:
        note = cls.note_of(generation) or {}
        version = session.get(Version, note.get("version"))
        return super().place(session, generation) if version is None else private_state.place_of(version)

    @classmethod
    def gone(cls, session: Session, generation: Generation) -> frozenset[int]:
        note = cls.note_of(generation) or {}
        return forgotten(session, generation.id) | frozenset(note["gone"])

    @classmethod
    def opened(cls, process: Process, generation: Generation, recipe: str) -> Self | None:
        found, note = super().opened(process, generation, recipe), cls.note_of(generation) or {}
        if found is None:
            return None
        state = found.bench.method.afresh(found.state) if note["afresh"] else found.state
        return replace(found, state=found.method.left(state, note["gone"]))

    @classmethod
    def drop_state(cls, process: Process, generation_id: int) -> None:
        """Delete the note. The state is the version's."""
        with process.storage.database.write() as session:
            generation = session.get_one(Generation, generation_id)
            generation.manifest = {name: fact for name, fact in (generation.manifest or {}).items() if name != cls.NOTE}


def forget_in_parts(
    process: Process,
    job: Deletions,
    bench: OpenModel,
    state: State,
    *,
    digest: str,
    forget: ForgetSet,
    retain: Examples,
    afresh: bool,
) -> Forgotten | None:
    """Return what ``forget`` of a method with parts returns, computed together with other workers.

    None where that is not worth it: fewer than two parts, a short training, or no other worker takes the model. Each
    part starts from the state of ``digest``, the current version's, or, where nothing of it is used again (``afresh``),
    from none. Raises Stale.
    """
    if bench.built is not None:
        return forget_by_keys(process, job, bench, state, forget=forget, retain=retain)
    method, database = bench.method, process.storage.database
    if not isinstance(method, InParts):
        return None
    start = method.left(state, forget.positions)
    todo = method.unfinished(start)
    with database.read() as session:
        generation = session.get_one(Generation, job.generation_id)
        seconds = (measured_work(generation) or 0.0) * len(todo) / len(method.unfinished(method.start()))
        shared = seconds >= WORTH_SECONDS and others_take(session, session.get_one(Model, job.model_id), process.owner)
        left = LeavingUnits.note_of(generation) is not None
    if left:  # by a worker that died
        with drain.undivided():
            LeavingUnits.forget(process, job.generation_id)
    if len(todo) < 2 or not shared:
        return None
    note = {
        "state": digest,
        "version": job.current_id,
        "gone": sorted(forget.positions),
        "policy": job.policy.to_json(),
        "token": job.lease.token,
        "afresh": afresh,
        ENVIRONMENT: Environment.of(bench.problem.device, bench.problem.artefact).digest,
    }
    with database.write() as session:
        extend_manifest(session, job, {LeavingUnits.NOTE: note})
        pieces_of(process, WorkUnit, job.generation_id).lay_out(session, todo)
    units = LeavingUnits(process, job.generation_id, job.model_id, bench, retain, start, digest)
    units.compute_all(job, drain.look_on)
    made, _ = units.finished(silent)
    with drain.undivided():
        LeavingUnits.forget(process, job.generation_id)
    return Forgotten(made, method.told(start))
