"""Preparing in work units: the vectors of some holders each, computed by whichever workers there are.

Every work unit follows the same trajectory, which lies sealed in the private store until version 1 is published. Its
rows are written under its holders' keys, and the work unit is marked done with the last of them: a preparation that is
taken up again neither trains anew nor repeats a work unit. A message only says that there is work; the table says what
it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from service.infra.db import now
from service.infra.fault_injection import crash_point
from service.infra.queue import notify as queue
from service.infra.tables import Generation, Model, WorkUnit
from unlearning.model.method import Divisible, Method
from unlearning.types import Examples, Learned, Progress, Refused, State, Trajectory, silent
from workers.runtime.jobs import Preparation
from workers.runtime.lease import fence
from workers.runtime.model import Bench
from workers.runtime.process import Process
from workers.runtime.work_units import BUILT, POLL_SECONDS, Pieces, Taken
from workers.storage import private_state as state
from workers.storage.storage import Storage
from workers.training import resume as resumed
from workers.training.resume import Unprepared
from workers.update.precedence import give_way

NOTE = "trained"
LEAST_HOLDERS = 64
"""in a work unit: each one pays for following the trajectory, which costs as much as a few vectors"""


@dataclass(frozen=True)
class Course:
    """What every work unit of one generation starts from."""

    generation_id: int
    model_id: str
    bench: Bench
    method: Divisible
    examples: Examples
    learned: Learned

    @property
    def holders(self) -> list[str]:
        return sorted(set(self.examples.holders))

    def work_unit(self, number: int, count: int) -> list[str]:
        """The holders of one work unit of ``count``."""
        names = self.holders
        return names[len(names) * number // count : len(names) * (number + 1) // count]


def divisible(method: Method, bench: Bench, learned: Learned) -> Divisible | None:
    """The method, where its preparation can be shared out on this training."""
    return method if isinstance(method, Divisible) and method.divides(bench.problem, learned) else None


def wanted(process: Process, examples: Examples) -> int:
    """How many work units the setting and the number of holders make; below two it is not worth while."""
    return min(process.settings.work_units, len(set(examples.holders)) // LEAST_HOLDERS)


def lay_out(process: Process, job: Preparation, course: Course, count: int, more: Mapping[str, Any]) -> None:
    """Keep the trajectory, sealed, and what else a preparation that is taken up needs; lay the work units out."""
    trajectory = course.learned.trajectory
    tensors = trajectory.tensors() if trajectory is not None else {}
    kept = state.keep(process.storage.private, process.storage.sealer, State(course.learned.weights, tensors), {})
    note = {**more, "state": kept.digest, "policy": job.policy.to_json()}
    with process.storage.database.write() as session:
        fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        generation.manifest = (generation.manifest or {}) | {NOTE: note}
        Pieces(process, WorkUnit, job.generation_id).lay_out(session, count)


def course_of(process: Process, generation: Generation, recipe: str) -> Course:
    """Load what the work units start from. Raises Unprepared, Refused."""
    note = resumed.note_of(generation, NOTE)
    if note is None:
        raise Unprepared("nothing is trained")
    found = resumed.resume(process, generation, recipe, note)
    learned = Learned(found.state.weights, Trajectory.from_tensors(found.state.tensors))
    method = divisible(found.bench.method, found.bench, learned)
    if method is None:
        raise Unprepared("the method's preparation is not shared out")
    return Course(generation.id, generation.model_id, found.bench, method, found.examples, learned)


def compute_all(process: Process, job: Preparation, course: Course, progress: Progress) -> None:
    """Every work unit, together with whoever helps. Raises Stale, and Interrupted between two work units."""
    pieces = Pieces(process, WorkUnit, course.generation_id)
    count = pieces.count()
    queue.notify_many(process.notifier, course.model_id, count - pieces.done() - 1)
    while (done := pieces.done()) < count:
        progress(done / count)
        with process.storage.database.write() as session:
            fence(session, job.lease)
            number = pieces.take(session)
        if number is None:
            time.sleep(POLL_SECONDS)
        else:
            queue.notify(process.storage.database, process.notifier, [course.model_id])
            _compute(process, course, number, lambda share, done=done: progress((done + share) / count))  # type: ignore[misc]
        if pieces.done() < count:
            give_way(process.storage.database, process.settings.served_tenants)


def assist(process: Process, model_id: str) -> bool:
    """Compute one free work unit of a generation that another worker is building, and pass the bell on.

    False: there was none.
    """
    with process.storage.database.read() as session:
        model = session.get(Model, model_id)
        generations = session.scalars(
            select(Generation).where(Generation.model_id == model_id, Generation.status.in_(BUILT))
        ).all()
    if model is None or not process.settings.serves(model.tenant_id):
        return False
    for generation in generations:
        pieces = Pieces(process, WorkUnit, generation.id)
        if resumed.note_of(generation, NOTE) is None or not pieces.any_free():
            continue
        try:
            course = course_of(process, generation, model.recipe)
        except (Unprepared, Refused):
            return False
        with process.storage.database.write() as session:
            number = pieces.take(session)
        if number is not None:
            queue.notify(process.storage.database, process.notifier, [model_id])
            _compute(process, course, number, silent)
            queue.notify(process.storage.database, process.notifier, [model_id])
        return number is not None
    return False


def completed(storage: Storage, course: Course, progress: Progress) -> State:
    """The method's state once all work units are done; its vectors stay where they are. Raises Refused."""
    problem = course.bench.problem
    numbers = course.method.length(problem)
    vectors = state.Kept(storage.database, storage.keys, course.generation_id, numbers, problem.device)
    return course.method.complete(problem, course.examples, course.learned, vectors, progress)


def forget(process: Process, generation_id: int) -> None:
    """A preparation starts anew, or is over: its work units and its trajectory are of no use."""
    Pieces(process, WorkUnit, generation_id).clear()
    resumed.drop(process.storage, generation_id, NOTE)


def _compute(process: Process, course: Course, number: int, progress: Progress) -> None:
    pieces = Pieces(process, WorkUnit, course.generation_id)
    crash_point("work-unit-inside")
    holders = course.work_unit(number, pieces.count())
    try:
        vectors = course.method.part(course.bench.problem, course.examples, course.learned, holders, progress)
        _store(process.storage, course, pieces, number, vectors)
    except Taken:
        return
    except BaseException:
        pieces.let_go(number)
        raise
    crash_point("work-unit-after")


def _store(storage: Storage, course: Course, pieces: Pieces, number: int, vectors: Mapping[str, Any]) -> None:
    """Write the work unit's rows in place of what a dead worker wrote of them, then its mark. Progress resets
    attempts.
    """
    with storage.database.write() as session:
        pieces.ours(session, number)
        left = state.drop_vectors(session, course.generation_id, vectors)
    if left:
        storage.keys.destroy(left)
    for rows in state.seal_vectors(storage.keys, course.generation_id, vectors):
        with storage.database.write() as session:
            pieces.ours(session, number)
            state.write_vectors(session, rows)
        crash_point("work-unit-inside-rows")
    with storage.database.write() as session:
        pieces.ours(session, number).done_at = now(session)
        generation = session.get_one(Generation, course.generation_id)
        generation.attempts = min(generation.attempts, 1)
