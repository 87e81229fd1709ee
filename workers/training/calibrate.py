"""Measure the guarantee ``calibrated``: run deletion orders over people, and retrain for each.

One order is one unit of work. Its errors are sealed and stored as soon as they are known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select

from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Damaged
from expunge.service.infra.tables import CalibrationOrder, Generation
from expunge.workers.guarantee.terms import guarantee_from_json
from expunge.workers.storage import private_state
from expunge.workers.training.units import Units
from unlearning.bounds.calibration import Calibrated, Design, OrderErrors, calibrate, errors_along
from unlearning.model.problem import Problem
from unlearning.types import Progress, Refused


@dataclass(frozen=True)
class CalibrationResult:
    """The calibration of the method, and of an untouched model in its place."""

    method: Calibrated
    nothing: Calibrated


class CalibrationUnits(Units):
    """The deletion orders of one calibrated generation."""

    NOTE = "prepared"
    RECORD = CalibrationOrder

    @property
    def design(self) -> Design:
        """Return the calibration's design, as registration fixed it."""
        design: Design = guarantee_from_json(self._manifest())["design"]
        return design

    def compute(self, number: int, progress: Progress) -> None:  # noqa: ARG002  (an order is one step)
        """Measure one order, and seal its errors together with the order that they belong to."""
        crash_point("calibration-inside-order")
        storage, design, manifest = self.process.storage, self.design, self._manifest()
        order = design.order(self.examples.people, number)
        with storage.database.read() as session:
            vectors = private_state.read_vectors(
                session, storage.keys, self.generation_id, order, self.bench.problem.device
            )
        along = errors_along(
            self._problem(),
            self.bench.method,
            replace(self.state, vectors=vectors),
            self.examples,
            order,
            sizes=design.sizes,
            reference=manifest["reference"],
        )
        found = {"errors": along.errors, "untouched": along.untouched}
        exact = {name: [repr(error) for error in errors] for name, errors in found.items()}
        note = json.dumps({"prepared": self.digest, **exact})
        sealed = storage.sealer.seal(place_of(self.generation_id, number), note.encode())
        with storage.database.write() as session:
            row = self.mark_done(session, number)
            if row is None:
                return
            row.errors = sealed
        crash_point("calibration-after-order")

    def finished(self, progress: Progress) -> CalibrationResult:  # noqa: ARG002 (nothing is left to compute)
        """Return both calibrations once all orders are done. Raises Damaged, Refused."""
        query = select(CalibrationOrder).where(CalibrationOrder.generation_id == self.generation_id)
        with self.process.storage.database.read() as session:
            rows = session.scalars(query).all()
        orders = {}
        for row in rows:
            place = place_of(self.generation_id, row.number)
            note = json.loads(self.process.storage.sealer.open(place, row.errors or b""))
            if note["prepared"] != self.digest:
                raise Damaged(f"The errors of order {row.number} were measured on another state.")
            errors, untouched = (tuple(float(error) for error in note[name]) for name in ("errors", "untouched"))
            orders[row.number] = OrderErrors(errors, untouched)
        return found_of(self.design, orders)

    def _manifest(self) -> Mapping[str, Any]:
        with self.process.storage.database.read() as session:
            return session.get_one(Generation, self.generation_id).manifest or {}

    def _problem(self) -> Problem:
        """Return the problem in the precision of the method's own weights, for the retrainings."""
        problem = self.bench.problem
        return problem if problem.training.converge is not None else problem.cast(self.state.weights.dtype)


def place_of(generation_id: int, number: int) -> str:
    """Return the place for which the errors of an order are sealed."""
    return f"calibration/{generation_id}/{number}"


def found_of(design: Design, orders: Mapping[int, OrderErrors]) -> CalibrationResult:
    """Return both calibrations, by the same rule. Raises Refused where the method gives no bound."""
    return CalibrationResult(
        calibrate(design, {number: along.errors for number, along in orders.items()}),
        calibrate(design, {number: along.untouched for number, along in orders.items()}),
    )


def require_useful_cap(found: CalibrationResult, cap: float) -> None:
    """Require that the cap lies between the method's bound at the largest size and the bound of an untouched model.

    A cap above the latter would also cover untouched weights. The hint names powers of ten only, because the
    bounds are measured on people. Raises Refused.
    """
    people = found.method.design.sizes[-1]
    bound, nothing = found.method.bound(people), found.nothing.bound(people)
    enough = 10.0 ** math.ceil(math.log10(bound)) if bound > 0 else 0.0
    better = f"Set max_distance to {enough:g} and raise noise_std with it, or measure smaller sizes."
    if bound >= nothing:
        raise Refused(
            f"For {people} people this method's calibrated bound is no smaller than that of doing nothing.",
            "Choose another method: one that `expunge lab evaluate` shows below 1, or retrain.",
        )
    if bound > cap:
        raise Refused(f"The calibrated bound for {people} people is above max_distance {cap:g}.", better)
    if cap >= nothing:
        raise Refused(
            f"max_distance {cap:g} is vacuous: weights that forgot none of {people} people would lie within it as "
            f"well.",
            f"Set max_distance to {enough:g}." if enough < nothing else "Lower it, or measure larger sizes.",
        )
