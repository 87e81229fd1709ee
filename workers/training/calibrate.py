"""Measuring the guarantee ``calibrated``: deletion orders over people, really run and really retrained.

One order is one piece of work. Every worker that has nothing else to do on the model takes one; its errors are sealed
and stored as soon as they are known. A worker that dies loses the order in its hands: an order whose owner's heart no
longer beats is free again. The trained state lies sealed in the private store until version 1 is published, so that a
preparation that is taken up again neither trains nor measures twice.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select

from service.infra.db import now
from service.infra.fault_injection import crash_point
from service.infra.queue import notify as queue
from service.infra.tables import CalibrationOrder, Generation, Model
from unlearning.bounds.calibration import Along, Calibrated, Design, calibrate, errors_along
from unlearning.model.problem import Problem
from unlearning.types import Examples, Progress, Refused, State
from workers.guarantee.dry_run import guarantee_from_json
from workers.runtime.jobs import Preparation
from workers.runtime.lease import fence
from workers.runtime.model import Bench
from workers.runtime.process import Process
from workers.runtime.work_units import BUILT, POLL_SECONDS, Pieces
from workers.storage import private_state as state
from workers.storage.encryption import Unsealable
from workers.storage.storage import Storage
from workers.training import resume as resumed
from workers.training.resume import Unprepared
from workers.update.precedence import give_way

NOTE = "prepared"


@dataclass(frozen=True)
class Course:
    """What every order of one generation starts from. ``prepared`` is the digest of the sealed state."""

    generation_id: int
    model_id: str
    prepared: str
    bench: Bench
    examples: Examples
    state: State
    design: Design
    reference: str


def open_orders(process: Process, job: Preparation, made: State, design: Design, registered: Mapping[str, Any]) -> None:
    """Keep the trained state, sealed, and what else was ``registered``; lay the orders out. Raises Stale."""
    kept = state.keep(process.storage.private, process.storage.sealer, made, {})
    prepared = {**registered, "state": kept.digest, "policy": job.policy.to_json()}
    with process.storage.database.write() as session:
        fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        generation.manifest = (generation.manifest or {}) | {NOTE: prepared}
        Pieces(process, CalibrationOrder, job.generation_id).lay_out(session, design.orders)


def prepared_of(generation: Generation) -> dict[str, Any] | None:
    """What ``open_orders`` kept, while the generation is being built."""
    return resumed.note_of(generation, NOTE)


def course_of(process: Process, generation: Generation, recipe: str) -> Course:
    """Load what the orders start from. Raises Unprepared, Refused."""
    frozen, kept = generation.manifest or {}, prepared_of(generation)
    if kept is None:
        raise Unprepared("nothing is prepared")
    found = resumed.resume(process, generation, recipe, kept)
    design, reference = guarantee_from_json(frozen)["design"], frozen["reference"]
    where = (generation.id, generation.model_id, kept["state"])
    return Course(*where, found.bench, found.examples, found.state, design, reference)


@dataclass(frozen=True)
class Found:
    """What all orders showed of the method, and of doing nothing in its place."""

    method: Calibrated
    nothing: Calibrated


def measure_all(process: Process, job: Preparation, course: Course, progress: Progress) -> Found:
    """Every order, together with whoever helps. Raises Stale, Interrupted between two orders, and Refused where they
    give no bound."""
    orders, pieces = course.design.orders, Pieces(process, CalibrationOrder, course.generation_id)
    while (done := pieces.done()) < orders:
        progress(done / orders)
        with process.storage.database.write() as session:
            fence(session, job.lease)
            number = pieces.take(session)
        if number is None:
            time.sleep(POLL_SECONDS)
        else:
            queue.notify(process.storage.database, process.notifier, [course.model_id])
            _measure(process, course, number)
        if pieces.done() < orders:
            give_way(process.storage.database, process.settings.served_tenants)
    return found_of(course.design, _orders(process.storage, course))


def found_of(design: Design, orders: Mapping[int, Along]) -> Found:
    """Both calibrations, by the same rule. Raises Refused where the method gives no bound."""
    return Found(
        calibrate(design, {number: along.errors for number, along in orders.items()}),
        calibrate(design, {number: along.untouched for number, along in orders.items()}),
    )


def require_useful_cap(found: Found, cap: float) -> None:
    """Raises Refused where the cap is below the method's bound at the largest size, or not below that of doing nothing:
    such a claim would also cover weights that forgot nobody. It tells powers of ten alone."""
    people = found.method.design.sizes[-1]
    bound, nothing = found.method.bound(people), found.nothing.bound(people)
    enough = 10.0 ** math.ceil(math.log10(bound)) if bound > 0 else 0.0
    better = f"Set max_distance to {enough:g} and raise noise_std with it, or measure smaller sizes."
    if bound >= nothing:
        raise Refused(
            f"For {people} people this method's calibrated bound is no smaller than that of doing nothing.",
            "Choose another method: one that `expunge evaluate` shows below 1, or retrain.",
        )
    if bound > cap:
        raise Refused(f"The calibrated bound for {people} people is above max_distance {cap:g}.", better)
    if cap >= nothing:
        raise Refused(
            f"max_distance {cap:g} is vacuous: weights that forgot none of {people} people would lie within it as "
            f"well.",
            f"Set max_distance to {enough:g}." if enough < nothing else "Lower it, or measure larger sizes.",
        )


def assist(process: Process, model_id: str) -> bool:
    """Measure one free order of a generation that another worker is building, and pass the bell on.

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
        pieces = Pieces(process, CalibrationOrder, generation.id)
        if prepared_of(generation) is None or not pieces.any_free():
            continue
        try:
            course = course_of(process, generation, model.recipe)
        except (Unprepared, Refused):
            return False
        with process.storage.database.write() as session:
            number = pieces.take(session)
        queue.notify(process.storage.database, process.notifier, [model_id])
        if number is not None:
            _measure(process, course, number)
            queue.notify(process.storage.database, process.notifier, [model_id])
        return number is not None
    return False


def forget_orders(process: Process, generation_id: int) -> None:
    """A preparation starts anew: its orders and its state are of no use."""
    Pieces(process, CalibrationOrder, generation_id).clear()
    drop_prepared(process.storage, generation_id)


def drop_prepared(storage: Storage, generation_id: int) -> None:
    """The sealed state of preparation goes once version 1 has its own. The scheduler repairs what is left."""
    resumed.drop(storage, generation_id, NOTE)


def _measure(process: Process, course: Course, number: int) -> None:
    """One order; its errors are sealed together with the order that they belong to."""
    crash_point("calibration-inside-order")
    order = course.design.order(course.examples.holders, number)
    try:
        storage, device = process.storage, course.bench.problem.device
        with storage.database.read() as session:
            vectors = state.read_vectors(session, storage.keys, course.generation_id, order, device)
        along = errors_along(
            _work(course),
            course.bench.method,
            replace(course.state, vectors=vectors),
            course.examples,
            order,
            sizes=course.design.sizes,
            reference=course.reference,
        )
    except BaseException:
        Pieces(process, CalibrationOrder, course.generation_id).let_go(number)
        raise
    found = {"errors": along.errors, "untouched": along.untouched}
    told = {name: [repr(error) for error in errors] for name, errors in found.items()}
    note = json.dumps({"order": _place(course, number), **told})
    _store(process, course, number, b"".join(process.storage.sealer.seal([note.encode()])))
    crash_point("calibration-after-order")


def _store(process: Process, course: Course, number: int, sealed: bytes) -> None:
    """An order that was measured twice, or for a preparation that is over, is dropped. Progress resets the attempts."""
    with process.storage.database.write() as session:
        generation = session.get_one(Generation, course.generation_id)
        kept = prepared_of(generation)
        row = session.get(CalibrationOrder, (course.generation_id, number))
        if kept is None or kept["state"] != course.prepared or row is None or row.measured_at is not None:
            return
        row.owner, row.errors, row.measured_at = process.owner, sealed, now(session)
        generation.attempts = min(generation.attempts, 1)


def _orders(storage: Storage, course: Course) -> dict[int, Along]:
    query = select(CalibrationOrder).where(CalibrationOrder.generation_id == course.generation_id)
    with storage.database.read() as session:
        rows = session.scalars(query).all()
    found = {}
    for row in rows:
        note = json.loads(storage.sealer.unseal(row.errors or b""))
        if note["order"] != _place(course, row.number):
            raise Unsealable(f"the errors of order {row.number} belong elsewhere")
        errors, untouched = (tuple(float(error) for error in note[name]) for name in ("errors", "untouched"))
        found[row.number] = Along(errors, untouched)
    return found


def _work(course: Course) -> Problem:
    """Retrainings are computed as finely as the method's own weights."""
    problem = course.bench.problem
    if problem.training.converge is not None:
        return problem
    return problem.cast(course.state.weights.dtype)


def _place(course: Course, number: int) -> str:
    return f"{course.generation_id}/{number}/{course.prepared}"
