"""Parts of a training that know nothing of each other: each is a work unit, and lies sealed in the private store.

The bits of a part follow from the start, the samples and its number, so it does not matter which worker trains it.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Self

from sqlalchemy import select

from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Damaged
from expunge.service.infra.tables import Generation, WorkUnit
from expunge.service.queue import Replan
from expunge.workers.runtime.process import Process
from expunge.workers.storage import private_state
from expunge.workers.training.units import Units
from unlearning.model.method import InParts
from unlearning.types import Learned, Progress, State, Vectors, VectorSource

SEEN = "seen"
"""among the facts of a sealed part: what its trainings in fresh processes had in common"""


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
        made = self.method.part(self.bench.problem, self.examples, self.state, number, progress)
        seen = None if fresh is None else asdict(fresh.seen)
        kept = private_state.keep(storage.private, storage.sealer, replace(made, facts={**made.facts, SEEN: seen}), {})
        with storage.database.write() as session:
            row = self.mark_done(session, number)
            if row is not None:
                row.result = kept.digest
        if row is None:
            storage.private.delete(kept.digest)
        crash_point("work-unit-after")

    def finished(self, progress: Progress) -> tuple[State, VectorSource]:
        """Return what ``prepare`` returns. Raises Replan where the file of a part is gone."""
        parts = {number: self._part(digest) for number, digest in self._results().items()}
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

    def _part(self, digest: str) -> State:
        storage = self.process.storage
        try:
            part = private_state.load(storage.private, storage.sealer, digest, self.bench.problem.device)
        except Damaged:
            raise Replan("the file of a trained part is gone", train_again=True) from None
        seen, fresh = part.facts[SEEN], self.bench.fresh
        if fresh is not None and isinstance(seen, dict):
            fresh.seen.add(seen)
        return part
