"""Measure the guarantee ``calibrated``: run deletion orders over people, and retrain for each.

One order is one unit of work. Its errors are sealed and stored as soon as they are known.
Each update of an order runs the recipe on the rows of those who stay, as the update of a request
does, and so does the retraining; the worker measures the distance of what both gave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import select
from torch import Tensor

from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import CalibrationOrder, Generation
from expunge_service.queue import Blocked
from expunge_workers.guarantee.terms import guarantee_from_json
from expunge_workers.runtime.model import open_model
from expunge_workers.runtime.process import Process
from expunge_workers.storage import manifest, private_state
from expunge_workers.storage.checkpoint_format import Malformed
from expunge_workers.storage.parts import PartStore
from expunge_workers.training.units import Units, in_its_environment
from expunge_workers.update.rows import samples_of_update
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.bounds.calibration import Calibrated, Design, OrderErrors, calibrate, errors_of
from unlearning.types import Progress, Refused, State, Vectors


@dataclass(frozen=True)
class CalibrationResult:
    """The calibration of the method, and of an untouched model in its place."""

    method: Calibrated
    nothing: Calibrated


@dataclass(frozen=True)
class _OfGeneration:
    """Work on a generation of a tenant, whoever holds its lease."""

    generation_id: int
    tenant_id: str
    policy: Policy


@dataclass(frozen=True)
class CalibrationUnits(Units):
    """The deletion orders of one calibrated generation."""

    job: _OfGeneration = field(kw_only=True)
    planned: Tensor = field(kw_only=True)
    """the positions (n,) of the samples that the training was planned for"""

    NOTE = "prepared"
    RECORD = CalibrationOrder

    @classmethod
    def opened(cls, process: Process, generation: Generation, recipe: str) -> Self | None:
        """Open what was laid out, within a block of ``readers``.

        None where it is gone, or the recipe, its surroundings or its rows changed. Raises Refused.
        """
        note, frozen, storage = cls.note_of(generation), generation.manifest or {}, process.storage
        if note is None:
            return None
        job = _OfGeneration(generation.id, generation.tenant_id, Policy.from_json(note["policy"]))
        parts, begun = PartStore(storage, generation.id), generation.created_at
        bench = open_model(process.settings, job.tenant_id, recipe, job.policy, parts=parts, until=begun)
        same = (bench.digest, bench.settings) == (frozen["recipe_digest"], frozen["settings_digest"])
        if not same or not in_its_environment(bench, note, frozen):
            return None
        try:
            with storage.database.read() as session:
                place = cls.place(session, generation)
            state = private_state.load(storage.private, storage.sealer, place, note["state"], bench.problem.device)
            everybody = samples_of_update(storage, job, bench, (), Guarantee.CALIBRATED)
        except (Damaged, Malformed, Refused):
            return None
        finally:
            if bench.world_model is not None:
                bench.world_model.close()
        if isinstance(everybody, Blocked) or everybody.changes.missing or everybody.changes.changed:
            return None
        bench, examples = everybody.bench, everybody.retained
        planned = everybody.bench.required_world_model.positions(examples)
        digest = note["state"]
        return cls(
            process,
            job.generation_id,
            generation.model_id,
            bench,
            examples,
            state,
            digest,
            job=job,
            planned=planned,
        )

    @property
    def design(self) -> Design:
        """Return the calibration's design, as registration fixed it."""
        design: Design = guarantee_from_json(self._manifest())["design"]
        return design

    def compute(self, number: int, progress: Progress) -> None:  # noqa: ARG002  (an order is one step)
        """Measure one order, and seal its errors together with the order that they belong to."""
        storage, design, frozen = self.process.storage, self.design, self._manifest()
        order = design.order(self.examples.people, number)
        with storage.database.read() as session:
            vectors = private_state.read_vectors(
                session, storage.keys, self.generation_id, order, self.bench.problem.device
            )
        along = self._errors_in_worlds(order, design.sizes, Vectors(vectors), frozen["reference"])
        found = {"errors": along.errors, "untouched": along.untouched}
        exact = {name: [repr(error) for error in errors] for name, errors in found.items()}
        note = json.dumps({"prepared": self.digest, **exact})
        sealed = storage.sealer.seal(place_of(self.generation_id, number), note.encode())
        with storage.database.write() as session:
            row = self.mark_done(session, number)
            if row is None:
                return
            row.errors = sealed

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

    def _errors_in_worlds(
        self, order: Sequence[str], sizes: Sequence[int], vectors: Vectors, reference: str
    ) -> OrderErrors:
        """Return what ``errors_along`` does, of updates and retrainings in worlds.

        Raises Damaged where the manifest is not what was frozen.
        """
        job, storage = self.job, self.process.storage
        with storage.database.read() as session:
            places = manifest.places(session, job.generation_id)

        def positions(people: Sequence[str]) -> list[int]:
            at: list[int] = places.at[places.holders.where(frozenset(people).__contains__)].tolist()
            return at

        def release_next(state: State, gone: int, size: int) -> tuple[State, Tensor]:
            going, before = positions(order[gone:size]), positions(order[:gone])
            selected = samples_of_update(storage, job, self.bench, going, Guarantee.CALIBRATED, before=before)
            if isinstance(selected, Blocked):
                raise Refused(
                    "The rows of those who stay changed while the calibration was measured.", "Register it again."
                )
            world_model, retain = selected.bench.required_world_model, selected.retained
            after = world_model.forget(state, selected.forget(vectors), retain, Guarantee.CALIBRATED).state
            return after, world_model.retrained(retain, self.planned, reference, after.weights.dtype)

        try:
            return errors_of(self.state, sizes, release_next)
        finally:
            self.close()

    def close(self) -> None:
        """End the world that is open: a template has one open at a time."""
        if self.bench.world_model is not None:
            self.bench.world_model.close()

    def _manifest(self) -> Mapping[str, Any]:
        with self.process.storage.database.read() as session:
            return session.get_one(Generation, self.generation_id).manifest or {}


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
