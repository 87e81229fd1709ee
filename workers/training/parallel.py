"""Preparing in shards: the vectors of some holders each, computed by whichever workers there are.

Every shard follows the same trajectory, which lies sealed in the private store until version 1 is published. Its rows
are written under its holders' keys, and the shard is marked done with the last of them: a preparation that is taken up
again neither trains anew nor repeats a shard. A message only says that there is work; the table says what it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select

from service.infra.db import now
from service.infra.fault_injection import crash_point
from service.infra.queue import notify as queue
from service.infra.tables import Lineage, Model, Shard
from unlearning.model.training import Trajectory, silent
from unlearning.types import Divisible, Examples, Learned, Method, Progress, Refused, State
from workers.runtime.jobs import Preparation
from workers.runtime.lease import fence
from workers.runtime.model import Bench
from workers.runtime.work_units import BUILT, POLL_SECONDS, Pieces, Taken
from workers.storage import private_state as state
from workers.storage.workshop import Workshop
from workers.training import resume as resumed
from workers.training.resume import Unprepared
from workers.update.precedence import give_way

NOTE = "trained"
LEAST_HOLDERS = 64
"""in a shard: each one pays for following the trajectory, which costs as much as a few vectors"""


@dataclass(frozen=True)
class Course:
    """What every shard of one lineage starts from."""

    lineage_id: int
    model_id: str
    bench: Bench
    method: Divisible
    examples: Examples
    learned: Learned

    @property
    def holders(self) -> list[str]:
        return sorted(set(self.examples.holders))

    def shard(self, number: int, count: int) -> list[str]:
        """The holders of one shard of ``count``."""
        names = self.holders
        return names[len(names) * number // count : len(names) * (number + 1) // count]


def divisible(method: Method, bench: Bench, learned: Learned) -> Divisible | None:
    """The method, where its preparation can be shared out on this training."""
    return method if isinstance(method, Divisible) and method.divides(bench.problem, learned) else None


def wanted(workshop: Workshop, examples: Examples) -> int:
    """How many shards the setting and the number of holders make; below two it is not worth while."""
    return min(workshop.shards, len(set(examples.holders)) // LEAST_HOLDERS)


def lay_out(workshop: Workshop, job: Preparation, course: Course, count: int, more: Mapping[str, Any]) -> None:
    """Keep the trajectory, sealed, and what else a preparation that is taken up needs; lay the shards out."""
    trajectory = course.learned.trajectory
    tensors = trajectory.tensors() if trajectory is not None else {}
    kept = state.keep(workshop, State(course.learned.weights, tensors), {})
    note = {**more, "state": kept.digest, "policy": job.policy.to_json()}
    with workshop.database.write() as session:
        fence(session, job.lease)
        lineage = session.get_one(Lineage, job.lineage_id)
        lineage.manifest = (lineage.manifest or {}) | {NOTE: note}
        Pieces(workshop, Shard, job.lineage_id).lay_out(session, count)


def course_of(workshop: Workshop, lineage: Lineage, recipe: str) -> Course:
    """Load what the shards start from. Raises Unprepared, Refused."""
    note = resumed.note_of(lineage, NOTE)
    if note is None:
        raise Unprepared("nothing is trained")
    found = resumed.resume(workshop, lineage, recipe, note)
    learned = Learned(found.state.weights, Trajectory.from_tensors(found.state.tensors))
    method = divisible(found.bench.method, found.bench, learned)
    if method is None:
        raise Unprepared("the method's preparation is not shared out")
    return Course(lineage.id, lineage.model_id, found.bench, method, found.examples, learned)


def compute_all(workshop: Workshop, job: Preparation, course: Course, progress: Progress) -> None:
    """Every shard, together with whoever helps. Raises Stale, and Interrupted between two shards."""
    pieces = Pieces(workshop, Shard, course.lineage_id)
    count = pieces.count()
    queue.gather(workshop.bell, course.model_id, count - pieces.done() - 1)
    while (done := pieces.done()) < count:
        progress(done / count)
        with workshop.database.write() as session:
            fence(session, job.lease)
            number = pieces.take(session)
        if number is None:
            time.sleep(POLL_SECONDS)
        else:
            queue.ring(workshop.database, workshop.bell, [course.model_id])
            _compute(workshop, course, number, lambda share, done=done: progress((done + share) / count))  # type: ignore[misc]
        if pieces.done() < count:
            give_way(workshop.database, workshop.tenants)


def assist(workshop: Workshop, model_id: str) -> bool:
    """Compute one free shard of a lineage that another worker is building, and pass the bell on.

    False: there was none.
    """
    with workshop.database.read() as session:
        model = session.get(Model, model_id)
        lineages = session.scalars(select(Lineage).where(Lineage.model_id == model_id, Lineage.status.in_(BUILT))).all()
    if model is None or not workshop.serves(model.tenant_id):
        return False
    for lineage in lineages:
        pieces = Pieces(workshop, Shard, lineage.id)
        if resumed.note_of(lineage, NOTE) is None or not pieces.any_free():
            continue
        try:
            course = course_of(workshop, lineage, model.recipe)
        except (Unprepared, Refused):
            return False
        with workshop.database.write() as session:
            number = pieces.take(session)
        if number is not None:
            queue.ring(workshop.database, workshop.bell, [model_id])
            _compute(workshop, course, number, silent)
            queue.ring(workshop.database, workshop.bell, [model_id])
        return number is not None
    return False


def completed(workshop: Workshop, course: Course, progress: Progress) -> State:
    """The method's state once all shards are done; its vectors stay where they are. Raises Refused."""
    problem = course.bench.problem
    numbers = course.method.length(problem)

    def read(holders: tuple[str, ...]) -> Mapping[str, Any]:
        return state.Kept(workshop, course.lineage_id, holders, numbers, problem.device)

    made = course.method.complete(problem, course.examples, course.learned, read, progress)
    return replace(made, vectors=read(tuple(course.holders)))


def forget(workshop: Workshop, lineage_id: int) -> None:
    """A preparation starts anew, or is over: its shards and its trajectory are of no use."""
    Pieces(workshop, Shard, lineage_id).clear()
    resumed.drop(workshop, lineage_id, NOTE)


def _compute(workshop: Workshop, course: Course, number: int, progress: Progress) -> None:
    pieces = Pieces(workshop, Shard, course.lineage_id)
    crash_point("shard-inside")
    holders = course.shard(number, pieces.count())
    try:
        vectors = course.method.part(course.bench.problem, course.examples, course.learned, holders, progress)
        _store(workshop, course, pieces, number, vectors)
    except Taken:
        return
    except BaseException:
        pieces.let_go(number)
        raise
    crash_point("shard-after")


def _store(workshop: Workshop, course: Course, pieces: Pieces, number: int, vectors: Mapping[str, Any]) -> None:
    """Write the shard's rows in place of what a dead worker wrote of them, then its mark. Progress resets attempts."""
    with workshop.database.write() as session:
        pieces.ours(session, number)
        left = state.drop_vectors(session, course.lineage_id, vectors)
    if left:
        workshop.keys.destroy(left)
    for rows in state.seal_vectors(workshop, course.lineage_id, vectors):
        with workshop.database.write() as session:
            pieces.ours(session, number)
            state.write_vectors(session, rows)
        crash_point("shard-inside-rows")
    with workshop.database.write() as session:
        pieces.ours(session, number).done_at = now(session)
        lineage = session.get_one(Lineage, course.lineage_id)
        lineage.attempts = min(lineage.attempts, 1)
