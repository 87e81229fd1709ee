"""Measuring the basis ``calibrated``: deletion orders over people, really run and really retrained.

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

from sqlalchemy import delete, func, insert, or_, select
from sqlalchemy.orm import Session

from service import queue
from service.crash import crash_point
from service.db import now
from service.records import CalibrationOrder, Heartbeat, Lineage, Model
from service.storage import Damaged
from unlearning.calibration import Calibrated, Design, calibrate, errors_along
from unlearning.policy import Policy
from unlearning.problem import Problem
from unlearning.protocol import Examples, Progress, Refused, State
from workers import manifest, recipes, state
from workers.bench import Bench, build
from workers.codec import Malformed
from workers.footing import basis_from_json
from workers.jobs import Preparation
from workers.lease import SECOND, fence
from workers.sealing import Unsealable
from workers.workshop import Workshop

POLL_SECONDS = 0.2
BUILT = ("preparing", "candidate")
"""lineages whose orders may still be measured"""


@dataclass(frozen=True)
class Course:
    """What every order of one lineage starts from. ``prepared`` is the digest of the sealed state."""

    lineage_id: int
    model_id: str
    prepared: str
    bench: Bench
    examples: Examples
    state: State
    design: Design
    reference: str


class Unprepared(RuntimeError):
    """The prepared state cannot be used any more: preparation starts anew."""


def open_orders(
    workshop: Workshop, job: Preparation, made: State, design: Design, registered: Mapping[str, Any]
) -> None:
    """Keep the trained state, sealed, and what else was ``registered``; lay the orders out. Raises Stale."""
    kept = state.keep(workshop, made, {})
    prepared = {**registered, "state": kept.digest, "policy": job.policy.to_json()}
    rows = [{"lineage_id": job.lineage_id, "number": number} for number in range(design.orders)]
    with workshop.database.write() as session:
        fence(session, job.lease)
        lineage = session.get_one(Lineage, job.lineage_id)
        lineage.manifest = (lineage.manifest or {}) | {"prepared": prepared}
        session.execute(insert(CalibrationOrder), rows)


def prepared_of(lineage: Lineage) -> dict[str, Any] | None:
    """What ``open_orders`` kept, while the lineage is being built."""
    found = (lineage.manifest or {}).get("prepared")
    return found if isinstance(found, dict) and lineage.status in BUILT else None


def course_of(workshop: Workshop, lineage: Lineage, recipe: str) -> Course:
    """Load what the orders start from. Raises Unprepared, Refused."""
    frozen, kept = lineage.manifest or {}, prepared_of(lineage)
    if kept is None:
        raise Unprepared("nothing is prepared")
    bench = build(workshop, recipe, Policy.from_json(kept["policy"]))
    if bench.digest != frozen["recipe_digest"] or not manifest.replayable(frozen["libraries"], bench.problem.device):
        raise Unprepared("the recipe or its surroundings changed")
    try:
        made = state.load(workshop, kept["state"], bench.problem.device)
        examples = _examples(workshop, lineage.id, bench, recipe, Policy.from_json(kept["policy"]))
    except (Damaged, Unsealable, Malformed, manifest.Changed) as error:
        raise Unprepared(type(error).__name__) from None
    design = basis_from_json(frozen)["design"]
    return Course(lineage.id, lineage.model_id, kept["state"], bench, examples, made, design, frozen["reference"])


def measure_all(workshop: Workshop, job: Preparation, course: Course, progress: Progress) -> Calibrated:
    """Every order, together with whoever helps. Raises Stale, and Refused where they give no bound."""
    orders = course.design.orders
    while (done := measured(workshop, course.lineage_id)) < orders:
        progress(done / orders)
        with workshop.database.write() as session:
            fence(session, job.lease)
            number = _take(session, workshop, course.lineage_id)
        if number is None:
            time.sleep(POLL_SECONDS)
            continue
        queue.ring(workshop.database, workshop.bell, [course.model_id])
        _measure(workshop, course, number)
    return calibrate(course.design, _errors(workshop, course))


def require_under_cap(found: Calibrated, cap: float) -> None:
    """Raises Refused where the bound at the largest size is above the cap. It tells the power of ten that would do."""
    bound = found.bound(found.design.sizes[-1])
    if bound <= cap:
        return
    enough = 10.0 ** math.ceil(math.log10(bound))
    raise Refused(
        f"The calibrated bound for {found.design.sizes[-1]} people is above delta_cap {cap:g}.",
        f"Set delta_cap to {enough:g} and raise sigma with it, or measure smaller sizes.",
    )


def assist(workshop: Workshop, model_id: str) -> None:
    """Measure one free order of a lineage that another worker is building, and pass the bell on."""
    with workshop.database.read() as session:
        model = session.get(Model, model_id)
        lineages = session.scalars(select(Lineage).where(Lineage.model_id == model_id, Lineage.status.in_(BUILT))).all()
    for lineage in lineages:
        if model is None or prepared_of(lineage) is None or not _any_free(workshop, lineage.id):
            continue
        try:
            course = course_of(workshop, lineage, model.recipe)
        except (Unprepared, Refused):
            return
        with workshop.database.write() as session:
            number = _take(session, workshop, lineage.id)
        queue.ring(workshop.database, workshop.bell, [model_id])
        if number is not None:
            _measure(workshop, course, number)
            queue.ring(workshop.database, workshop.bell, [model_id])
        return


def measured(workshop: Workshop, lineage_id: int) -> int:
    """How many orders are done."""
    done = select(func.count()).where(
        CalibrationOrder.lineage_id == lineage_id, CalibrationOrder.measured_at.is_not(None)
    )
    with workshop.database.read() as session:
        return session.scalar(done) or 0


def forget_orders(workshop: Workshop, lineage_id: int) -> None:
    """A preparation starts anew: its orders and its state are of no use."""
    with workshop.database.write() as session:
        session.execute(delete(CalibrationOrder).where(CalibrationOrder.lineage_id == lineage_id))
    drop_prepared(workshop, lineage_id)


def drop_prepared(workshop: Workshop, lineage_id: int) -> None:
    """The sealed state of preparation goes once version 1 has its own. The keeper repairs what is left."""
    with workshop.database.write() as session:
        lineage = session.get_one(Lineage, lineage_id)
        kept = dict(lineage.manifest or {})
        prepared = kept.pop("prepared", None)
        if prepared is not None:
            lineage.manifest = kept
    if prepared is not None:
        workshop.private.delete(prepared["state"])


def _measure(workshop: Workshop, course: Course, number: int) -> None:
    """One order; its errors are sealed together with the order that they belong to."""
    crash_point("calibration-inside-order")
    order = course.design.order(course.examples.holders, number)
    try:
        with workshop.database.read() as session:
            vectors = state.read_vectors(session, workshop, course.lineage_id, order, course.bench.problem.device)
        errors = errors_along(
            _work(course),
            course.bench.method,
            replace(course.state, vectors=vectors),
            course.examples,
            order,
            sizes=course.design.sizes,
            reference=course.reference,
        )
    except BaseException:
        _let_go(workshop, course.lineage_id, number)
        raise
    note = json.dumps({"order": _place(course, number), "errors": [repr(error) for error in errors]})
    _store(workshop, course, number, b"".join(workshop.sealer.seal([note.encode()])))
    crash_point("calibration-after-order")


def _store(workshop: Workshop, course: Course, number: int, sealed: bytes) -> None:
    """An order that was measured twice, or for a preparation that is over, is dropped. Progress resets the attempts."""
    with workshop.database.write() as session:
        lineage = session.get_one(Lineage, course.lineage_id)
        kept = prepared_of(lineage)
        row = session.get(CalibrationOrder, (course.lineage_id, number))
        if kept is None or kept["state"] != course.prepared or row is None or row.measured_at is not None:
            return
        row.owner, row.errors, row.measured_at = workshop.owner, sealed, now(session)
        lineage.attempts = min(lineage.attempts, 1)


def _errors(workshop: Workshop, course: Course) -> dict[int, tuple[float, ...]]:
    query = select(CalibrationOrder).where(CalibrationOrder.lineage_id == course.lineage_id)
    with workshop.database.read() as session:
        rows = session.scalars(query).all()
    found = {}
    for row in rows:
        note = json.loads(workshop.sealer.unseal(row.errors or b""))
        if note["order"] != _place(course, row.number):
            raise Unsealable(f"the errors of order {row.number} belong elsewhere")
        found[row.number] = tuple(float(error) for error in note["errors"])
    return found


def _take(session: Session, workshop: Workshop, lineage_id: int) -> int | None:
    """The first free order, now ours."""
    found = _free(workshop, lineage_id, now(session)).order_by(CalibrationOrder.number).limit(1)
    row = session.scalars(found.with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    row.owner = workshop.owner
    return int(row.number)


def _any_free(workshop: Workshop, lineage_id: int) -> bool:
    with workshop.database.read() as session:
        return session.scalars(_free(workshop, lineage_id, now(session)).limit(1)).first() is not None


def _free(workshop: Workshop, lineage_id: int, at: int) -> Any:
    """Orders that nobody measures: no owner, this process, or one that has stopped beating."""
    beating = select(Heartbeat.process).where(Heartbeat.beat_at > at - int(workshop.lease_seconds * SECOND))
    owner = CalibrationOrder.owner
    return select(CalibrationOrder).where(
        CalibrationOrder.lineage_id == lineage_id,
        CalibrationOrder.measured_at.is_(None),
        or_(owner.is_(None), owner == workshop.owner, owner.not_in(beating)),
    )


def _let_go(workshop: Workshop, lineage_id: int, number: int) -> None:
    with workshop.database.write() as session:
        row = session.get(CalibrationOrder, (lineage_id, number))
        if row is not None and row.owner == workshop.owner and row.measured_at is None:
            row.owner = None


def _work(course: Course) -> Problem:
    """Retrainings are computed as finely as the method's own weights."""
    problem = course.bench.problem
    if problem.training.converge is not None:
        return problem
    return problem.cast(course.state.weights.dtype)


def _examples(workshop: Workshop, lineage_id: int, bench: Bench, recipe: str, policy: Policy) -> Examples:
    samples = recipes.load(workshop.recipes, recipe).recipe.samples
    with workshop.database.read() as session:
        places = manifest.places(session, lineage_id)
    entries = manifest.entries(workshop.pepper, samples, policy.granularity)
    return manifest.found_again(samples, entries, places, frozenset(), bench.problem.device)


def _place(course: Course, number: int) -> str:
    return f"{course.lineage_id}/{number}/{course.prepared}"
